//! Checks that the journal of a shard leads to the state of the shard.
//!
//! The state is rebuilt twice at the end of a run: from nothing, and from a checkpoint that was read page by page while
//! commands went on.

use wharf_core::ids::{Incarnation, ShardId};
use wharf_core::journal::{Changes, Unit};
use wharf_core::recovery::Rebuild;
use wharf_core::shard::{CheckpointPage, Command, Outcome, Shard};
use wharf_core::state::{PartitionState, StoreState};
use wharf_core::time::Time;

/// The journal of one shard, and a checkpoint.
#[derive(Default)]
pub(crate) struct Journaled {
    units: Vec<Unit>,
    pages: Vec<CheckpointPage>,
    /// The number of units when the checkpoint began.
    begun_at: usize,
    /// Where the next page begins. `None`: the checkpoint is complete.
    next: Option<u32>,
}

impl Journaled {
    /// Begins the journal of a shard without nodes.
    pub(crate) fn begin(shard: &mut Shard) -> Self {
        shard.enable_journal();
        Self::default()
    }

    /// Takes what the last batch changed.
    pub(crate) fn follow(&mut self, shard: &mut Shard) {
        self.units.extend(shard.take_unit(Vec::new()));
    }

    /// Reads the next page of the checkpoint, or begins a new one. The page is a command among others.
    pub(crate) fn read_page(&mut self, shard: &mut Shard, now: Time) {
        if self.next.is_none() {
            self.pages.clear();
            self.begun_at = self.units.len();
        }
        let from = self.next.unwrap_or(0);
        let mut outcomes = Vec::new();
        shard.step([Command::Checkpoint { from }], now, &mut outcomes);
        let Some(Outcome::Page(page)) = outcomes.pop() else { panic!("a page was asked for") };
        self.next = page.next;
        self.pages.push(*page);
        self.follow(shard);
    }

    /// Compares the rebuilt states with that of the shard. Nothing may be held.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check(mut self, shard: &mut Shard, partitions: u16, now: Time) -> Result<(), String> {
        self.follow(shard);
        while self.next.is_some() {
            self.read_page(shard, now);
        }
        let state = shard.export();
        let empty = || Rebuild::new(StoreState::create(partitions)).map_err(|error| error.to_string());
        let started = Changes::Started { incarnation: Incarnation(1), shards: 1 };
        let mut whole = empty()?;
        whole.apply(Unit::new(now, started.clone())).map_err(|error| error.to_string())?;
        let mut from_pages = empty()?;
        from_pages.apply(Unit::new(now, started)).map_err(|error| error.to_string())?;
        for page in self.pages {
            let CheckpointPage { partitions, policy: (policy, granularity), .. } = page;
            from_pages.set_policy(ShardId(0).index(), policy, granularity);
            for partition in partitions {
                from_pages.add(partition).map_err(|error| error.to_string())?;
            }
        }
        for (number, unit) in self.units.into_iter().enumerate() {
            if number >= self.begun_at {
                from_pages.apply(unit.clone()).map_err(|error| error.to_string())?;
            }
            whole.apply(unit).map_err(|error| error.to_string())?;
        }
        for (how, rebuild) in [("the journal", whole), ("a checkpoint and the journal", from_pages)] {
            let rebuilt = rebuild.finish().map_err(|error| format!("{how}: {error}"))?;
            differences(how, &rebuilt.partitions, &state.partitions)?;
            if !rebuilt.policies.is_empty() && rebuilt.policies != [state.policy.clone()] {
                return Err(format!(
                    "{how} has policies {:?}, the shard {:?}",
                    rebuilt.policies, state.policy
                ));
            }
        }
        Ok(())
    }
}

/// Returns the first record that differs.
fn differences(how: &str, rebuilt: &[PartitionState], actual: &[PartitionState]) -> Result<(), String> {
    for actual in actual {
        let rebuilt = &rebuilt[usize::from(actual.id.0)];
        if rebuilt != actual {
            return Err(format!("{how} leads to\n{rebuilt:?}\nand the shard has\n{actual:?}"));
        }
    }
    Ok(())
}
