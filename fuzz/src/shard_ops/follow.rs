//! A follower of a shard. It is told the difference of two views in portions of any size, and must end with
//! exactly the content of the newer view.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::ids::{AllocationId, NodeId, StatementId};
use wharf_core::rng::Rng;
use wharf_core::view::{Change, ChangeCursor, ChangeKinds, ColdImage, HotImage, Step, View};

/// The content of a view as text. Entries of a node also name the node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    nodes: BTreeMap<NodeId, String>,
    allocations: BTreeMap<AllocationId, (NodeId, String)>,
    holds: BTreeMap<(StatementId, u16), (NodeId, String)>,
}

fn node_text(hot: &HotImage, cold: &ColdImage) -> String {
    let HotImage { ordinal, version, cpu, memory, gpus, allocations, partition, state, .. } = hot;
    let custom: Vec<_> = cold.custom_available().collect();
    let spec = &cold.registration.spec;
    let agent = &cold.registration.agent;
    format!(
        "{ordinal:?} {version} {cpu:?} {memory:?} {gpus:?} {allocations} {partition:?} {state:?} {spec:?} \
         {agent:?} {custom:?} {:?} {:?}",
        cold.unhealthy(),
        cold.reservation()
    )
}

impl Told {
    /// Returns the whole content of a view.
    fn plain(view: &View) -> Self {
        let mut told = Self::default();
        view.nodes(|slot, hot, cold| {
            told.nodes.insert(hot.id, node_text(hot, cold));
            for allocation in view.allocations(slot) {
                told.allocations.insert(allocation.id, (hot.id, format!("{allocation:?}")));
            }
            for hold in &cold.holds {
                told.holds.insert((hold.statement, hold.operation), (hot.id, format!("{hold:?}")));
            }
        });
        told
    }

    fn apply(&mut self, change: Change<'_>) -> Result<(), String> {
        let text = format!("{change:?}");
        let was_there = match change {
            Change::HoldEnded(node, hold) => {
                let gone = self.holds.remove(&(hold.statement, hold.operation));
                gone.is_some_and(|(on, _)| on == node.id)
            }
            Change::AllocationEnded(node, id, _) => {
                self.allocations.remove(&id).is_some_and(|(on, _)| on == node.id)
            }
            Change::NodeGone(node) => self.nodes.remove(&node.id).is_some(),
            Change::Node { hot, cold, before } => {
                let known = self.nodes.insert(hot.id, node_text(hot, cold)).is_some();
                known == before.is_some()
            }
            Change::Allocation(node, allocation) => {
                let id = allocation.id;
                let text = format!("{allocation:?}");
                self.allocations.insert(id, (node.id, text)).is_none() && self.nodes.contains_key(&node.id)
            }
            Change::Hold(node, hold) => {
                self.holds.insert((hold.statement, hold.operation), (node.id, format!("{hold:?}")));
                self.nodes.contains_key(&node.id)
            }
        };
        if was_there { Ok(()) } else { Err(format!("a follower cannot make anything of {text}")) }
    }
}

/// A follower, possibly in the middle of a step.
#[derive(Default)]
pub(super) struct Follower {
    told: Told,
    base: Option<Arc<View>>,
    step: Option<(Arc<View>, ChangeCursor)>,
}

impl Follower {
    /// Takes one portion of a step to the view that was current when the step began. Returns the number of
    /// changes.
    pub(super) fn portion(&mut self, latest: &Arc<View>, rng: &mut Rng) -> Result<u64, String> {
        let (to, at) = self.step.take().unwrap_or_else(|| (Arc::clone(latest), ChangeCursor::default()));
        let looks = 1 + rng.below(300) as usize;
        let most = 1 + rng.below(6);
        let mut count = 0;
        let mut fault = None;
        let next = Step::new(self.base.as_deref(), &to, ChangeKinds::ALL).portion(at, looks, &mut |change| {
            count += 1;
            if let Err(difference) = self.told.apply(change) {
                fault = Some(difference);
            }
            count < most && fault.is_none()
        });
        if let Some(fault) = fault {
            return Err(fault);
        }
        match next {
            Some(next) if next <= at => return Err(format!("a portion from {at:?} goes on at {next:?}")),
            Some(next) => self.step = Some((to, next)),
            None => {
                let plain = Told::plain(&to);
                if self.told != plain {
                    return Err(format!("a follower was told {:?}, there is {plain:?}", self.told));
                }
                self.base = Some(to);
            }
        }
        Ok(count)
    }
}
