//! The journal within the world, crashes, and starts after them.

use std::sync::Arc;

use wharf_core::ids::SessionId;
use wharf_core::request::PlacementRequest;
use wharf_core::state::{SessionRecord, StoreState};
use wharf_ops::file_error::FileError;
use wharf_ops::journal::{Durability, JournalTurn, Store};

use super::World;
use super::opened::{Opened, PARTITIONS, open};
use crate::disk::{Disk, Fate, Room};
use crate::sim::checkers::crash::{
    a_crash_keeps_the_groups, a_crash_keeps_the_nodes, a_crash_leaves_no_half, after_units, follow_removed,
};
use crate::sim::checkers::flips::{Expected, Flipped};
use crate::sim::checkers::outcomes::{Acknowledged, Moment};
use crate::sim::checkers::rest::nobody_oversleeps;
use crate::sim::checkers::submitted::NodeVersions;
use crate::sim::checkers::{Verdict, named};
use crate::sim::client::{Client, Role};
use crate::sim::facts::Facts;
use crate::sim::journal::Opening;
use crate::sim::power::flip_bit;
use crate::sim::server::is_of_session;

/// The highest number of operations of the disk until it fails: more than a turn of the journal takes.
const FAILS_WITHIN: u64 = 24;

/// The highest number of operations until it fails during a start.
const START_FAILS_WITHIN: u64 = 60;

/// The number of starts in a row that may fail because the disk does.
const STARTS_MAX: usize = 8;

/// A bit is flipped after one of this many crashes. The run goes on without it.
const CRASHES_PER_FLIP: u64 = 4;

/// Describes the failure of a start whose disk works.
pub(super) fn what_no_crash_leaves(error: FileError) -> String {
    format!("a start finds what no crash leaves: {error}")
}

/// Returns what clients have acknowledged in their sessions.
fn acknowledged(clients: &[Client]) -> impl Iterator<Item = (SessionId, Acknowledged)> {
    clients.iter().filter_map(|client| Some((client.session()?.0, client.acknowledged())))
}

impl Opening {
    /// Opens the store of a disk, as a start does. Returns its state too.
    pub(in crate::sim) fn of(disk: Disk, keeps: bool) -> Result<(Self, StoreState), FileError> {
        let files = Arc::new(disk.clone());
        let (store, state) = Store::open_files(files, PARTITIONS, Durability::Sync)?;
        Ok((Self { disk, store, keeps }, state))
    }
}

impl World<'_> {
    /// Lets something happen to the journal: a turn of one of its threads, a fault of the disk, or a crash.
    pub(super) fn move_journal(&mut self) -> Verdict {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        named("nobody_oversleeps", nobody_oversleeps("journal", 0, journal.oversleeps()))?;
        match self.choices.below(64) {
            0..36 => self.write_journal(),
            36..58 => {
                self.move_checkpoints();
                Ok(())
            }
            58 | 59 => {
                let room = *self.choices.pick(&[Room::Plenty, Room::Low, Room::Plenty, Room::None]);
                journal.disk.set_room(room);
                self.trace.line(format_args!("the disk has room: {room:?}"));
                Ok(())
            }
            60 => {
                let operations = self.choices.below(FAILS_WITHIN);
                journal.disk.fail_in(operations);
                self.trace.line(format_args!("the disk fails in {operations} operations"));
                Ok(())
            }
            61 if self.choices.one_in(2) => self.crash("the process is killed"),
            _ => Ok(()),
        }
    }

    fn write_journal(&mut self) -> Verdict {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        match journal.write() {
            Ok(JournalTurn::Nothing { .. }) => Ok(()),
            Ok(turn) => {
                let durable = journal.durable();
                self.trace.line(format_args!("the journal writes: {turn:?}, durable are {durable}"));
                Ok(())
            }
            Err(error) => {
                self.trace.line(format_args!("{error}"));
                self.crash("the journal fails")
            }
        }
    }

    fn move_checkpoints(&mut self) -> bool {
        let Some(journal) = &mut self.journal else { return false };
        if let Some(what) = journal.turn(self.now) {
            self.trace.line(format_args!("{what}"));
        }
        journal.is_making_checkpoint()
    }

    /// Runs both threads once, over a disk that works. Counts what moved.
    pub(super) fn drain_journal(&mut self, moved: &mut usize) -> Verdict {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        named("nobody_oversleeps", nobody_oversleeps("journal", 0, journal.oversleeps()))?;
        // Only a step may end in a crash.
        journal.disk.heal();
        journal.disk.set_room(Room::Plenty);
        let turn = journal.write().map_err(|error| error.to_string())?;
        self.move_checkpoints();
        *moved += usize::from(!matches!(turn, JournalTurn::Nothing { .. }));
        Ok(())
    }

    /// Ends the faults of the disk. If it has failed, the process ends as soon as it notices.
    pub(super) fn mend_disk(&mut self) -> Verdict {
        let Some(journal) = &self.journal else { return Ok(()) };
        journal.disk.heal();
        journal.disk.set_room(Room::Plenty);
        if journal.disk.has_failed() { self.crash("the disk has failed") } else { Ok(()) }
    }

    /// Keeps the books that the units so far lead to, if there are new ones.
    pub(super) fn follow_units(&mut self) {
        let Some(journal) = &self.journal else { return };
        let position = journal.position();
        if journal.books.last_key_value().is_some_and(|(&last, _)| last == position) {
            return;
        }
        let exported = self.runners.iter().map(|runner| runner.shard().export()).collect();
        let mut state = StoreState::collect(self.incarnation, self.now, self.registrar.state(), exported);
        state.groups = self.groups();
        let journal = self.journal.as_mut().expect("just seen");
        let (_, before) = journal.books.last_key_value().expect("it begins with some");
        follow_removed(before, &mut state);
        journal.books.insert(position, state);
    }

    /// Writes the state of a clean stop. Power may be lost afterwards.
    pub(super) fn write_stop(&mut self, state: &StoreState) -> Verdict {
        let Some(mut journal) = self.journal.take() else { return Ok(()) };
        journal.stop_checkpoints(self.now);
        self.checkpoints += journal.checkpoints;
        let disk = journal.disk.clone();
        let last = journal.write_all().map_err(|error| error.to_string())?;
        self.note_acknowledged();
        let replies = &self.server.replies;
        let life = journal.finish(state, last, replies).map_err(|error| error.to_string())?;
        self.lives.iter_mut().zip(life).for_each(|(lives, life)| lives.push(life));
        self.image = disk.image(self.fate());
        Ok(())
    }

    /// Chooses what a disk loses.
    fn fate(&mut self) -> Fate {
        match self.choices.below(8) {
            0 => Fate::None,
            1 => Fate::All,
            _ => Fate::Torn(self.choices.below(1 << 16)),
        }
    }

    /// Starts the service from what is on the disk. Without a journal, it starts from `state`. Returns the state that it
    /// started from, too. The disk may fail during the start, and power may be lost again.
    ///
    /// # Errors
    /// When a start fails although its disk works.
    pub(super) fn start_again(&mut self, state: &StoreState) -> Result<(Opened, StoreState), FileError> {
        let last = self.server.last_connection();
        if !self.has_journal {
            let opened = open(state, None, &mut self.choices, last, (self.small_budgets, self.job_rules))?;
            return Ok((opened, state.clone()));
        }
        self.gangs.forget_waits();
        for number in 0..STARTS_MAX {
            let disk = Disk::new(&self.image, self.lives.is_some());
            if number + 1 < STARTS_MAX && self.choices.one_in(4) {
                disk.fail_in(self.choices.below(START_FAILS_WITHIN));
            }
            let opening = Opening::of(disk.clone(), self.lives.is_some());
            let opened = opening.and_then(|(opening, state)| {
                let opened = open(
                    &state,
                    Some(opening),
                    &mut self.choices,
                    last,
                    (self.small_budgets, self.job_rules),
                )?;
                Ok((opened, state))
            });
            match opened {
                Ok(opened) => {
                    disk.heal();
                    return Ok(opened);
                }
                Err(error) if disk.has_failed() => {
                    self.trace.line(format_args!("the disk fails during the start: {error}"));
                    self.image = disk.image(self.fate());
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the disk works at the last start")
    }

    /// The process ends at once, and power may be lost. The service starts again, perhaps with another number of shards.
    pub(super) fn crash(&mut self, why: &str) -> Verdict {
        let Some(journal) = self.journal.take() else { return Ok(()) };
        self.crashes += 1;
        self.checkpoints += journal.checkpoints;
        let position = journal.position();
        let durable = journal.durable();
        self.trace.line(format_args!("{why}: {durable} of {position} units are durable"));
        self.image = journal.disk.image(self.fate());
        self.note_acknowledged();
        let expected = |units| Expected {
            books: journal.allowed(units).map(after_units).collect(),
            replies: &self.server.replies,
            moment: Moment { durable: units, events: usize::MAX },
        };
        let now = expected(durable);
        if let Some(before) = journal.durable_before()
            && self.choices.one_in(CRASHES_PER_FLIP)
        {
            let before = expected(before);
            let flipped = flip_bit(&self.image, self.choices.below(1 << 32), &now, &before);
            if let Some(Flipped { became, verdict }) = flipped {
                named("a_flipped_bit_is_noticed", verdict)?;
                self.trace.line(format_args!("with a flipped bit, a start is {became:?}"));
            }
        }
        let allowed = now.books;
        let was_full = journal.was_full;
        let life = journal.end(&self.server.replies);
        self.lives.iter_mut().zip(life).for_each(|(lives, life)| lives.push(life));
        let unanswered: Vec<PlacementRequest> = self.server.unanswered().cloned().collect();
        self.last_replies()?;
        if was_full {
            self.clients.iter_mut().for_each(Client::forget_statuses);
        }
        let opened = self.start_again(&StoreState::create(PARTITIONS));
        let (opened, state) = opened.map_err(what_no_crash_leaves)?;
        named("a_crash_leaves_no_half", a_crash_leaves_no_half(&state, &allowed))?;
        self.check_outcomes(&state.sessions, durable)?;
        self.resume_sessions(&state.sessions)?;
        self.forget_replies(durable);
        let mut undecided = self.gangs.undecided();
        self.server.groups.add_undecided(&mut undecided);
        let mut known = self.gangs.bundles();
        known.extend(self.server.groups.bundles());
        self.gangs.lose_answers();
        self.go_on(opened);
        named("a_crash_keeps_the_groups", a_crash_keeps_the_groups(&state.groups, &known, &undecided))?;
        self.follow_crash(&unanswered)
    }

    /// Notes what clients have acknowledged.
    pub(super) fn note_acknowledged(&mut self) {
        self.server.replies.set_acknowledged(acknowledged(&self.clients));
    }

    /// Checks that a start has the outcomes of which clients may know, when this many units were durable.
    pub(super) fn check_outcomes(&mut self, sessions: &[SessionRecord], durable: u64) -> Verdict {
        self.note_acknowledged();
        let moment = Moment { durable, events: usize::MAX };
        let kept = self.server.replies.a_start_keeps_the_outcomes(sessions, moment);
        named("a_start_keeps_the_outcomes", kept)
    }

    /// Forgets the replies that no client can have and those that were acknowledged. Clients have taken up their sessions.
    pub(super) fn forget_replies(&mut self, durable: u64) {
        self.server.replies.go_on(durable, acknowledged(&self.clients));
    }

    /// Compares what is there after a crash with what callers were told, and forgets what nobody was told.
    fn follow_crash(&mut self, unanswered: &[PlacementRequest]) -> Verdict {
        for runner in &self.runners {
            named("a_start_keeps_the_books", runner.shard().check_invariants())?;
        }
        let mut groups = self.groups();
        groups.retain(|group| !is_of_session(group));
        self.gangs.handle_crash(&self.facts, &groups, &self.grants);
        self.rules.handle_crash();
        self.statements.handle_crash(&self.facts);
        self.node_versions = NodeVersions::default();
        for facts in &self.facts {
            named("node_versions_only_grow", self.node_versions.check(&Facts::default(), facts))?;
        }
        let owned = self.grants.stopped(&self.facts, unanswered.iter());
        named("everything_is_somebodys", owned)?;
        let told = self.clients.iter().filter_map(|client| match client.role {
            Role::Agent { node, .. } if node != 0 => Some(node),
            _ => None,
        });
        named("a_crash_keeps_the_nodes", a_crash_keeps_the_nodes(told, &self.facts, &self.nodes_removed))?;
        self.check_charges()?;
        self.check_told_jobs(false)?;
        self.check_promises()
    }
}
