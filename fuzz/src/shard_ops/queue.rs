//! The order in which a shard wakes requests and bundles.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::Pair;
use wharf_core::ids::NodeId;
use wharf_core::shard::{Command, Shard, WaitToken};
use wharf_core::time::Time;

use crate::oracle::LinearShard;

/// The wake-ups of a shard, and what their order is compared with.
#[derive(Default)]
pub(super) struct QueueOrder {
    /// Wake-ups that are not answered yet.
    pub(super) woken: VecDeque<WaitToken>,
    /// The turn of each request and bundle that ever waited.
    turns: BTreeMap<WaitToken, (Reverse<i32>, Time, WaitToken)>,
    /// The nodes for which bundles were woken, in order, as far as they are not answered.
    bundles: BTreeMap<WaitToken, Vec<NodeId>>,
}

impl QueueOrder {
    /// Notes what the shard is about to be told.
    pub(super) fn note_command(&mut self, command: &Command) {
        let (token, priority, since) = match command {
            Command::Park(park) => (park.token, park.priority, park.since),
            Command::Watch(watch) => (watch.token, watch.priority, watch.since),
            Command::Rearm { token, reports } => {
                let known = self.bundles.get_mut(token);
                known.into_iter().for_each(|nodes| drop(nodes.drain(..*reports as usize)));
                return;
            }
            Command::Unpark(token) => {
                self.bundles.remove(token);
                return;
            }
            _ => return,
        };
        self.turns.insert(token, (Reverse(priority), since, token));
    }

    /// Takes what was woken. Returns a request that was woken for a node before a bundle that comes first and is under
    /// way for it.
    pub(super) fn take_woken(&mut self, shard: &mut Shard, oracle: &LinearShard) -> Option<String> {
        let woken: Vec<WaitToken> = shard.drain_woken().collect();
        for token in woken {
            self.woken.push_back(token);
            let nodes = shard.woken_for(token);
            if oracle.is_watched(token) {
                let known = self.bundles.entry(token).or_default();
                known.push(nodes[known.len()]);
                continue;
            }
            let Some(&node) = nodes.first() else { continue };
            let turn = self.turns[&token];
            let is_before =
                |(bundle, of): &(&WaitToken, &Vec<NodeId>)| of.contains(&node) && self.turns[bundle] < turn;
            if let Some((bundle, _)) = self.bundles.iter().find(is_before) {
                return Some(format!("{token:?} is woken for {node}, before {bundle:?} is answered"));
            }
        }
        None
    }
}

impl Pair {
    /// Returns the command with which a port answers that `token` was woken. Groups have no place here.
    pub(super) fn answer(&self, token: WaitToken) -> Command {
        if !self.oracle.is_watched(token) {
            return Command::Retry(token);
        }
        let reports = u32::from(!self.shard.woken_for(token).is_empty());
        Command::Rearm { token, reports }
    }

    /// Answers every wake-up as a port does. Afterwards no waiting request may fit.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        // Each retry places a request or moves on to the next one.
        let bound = 1000 + 100 * self.oracle.waiting().len();
        for _ in 0..bound {
            let Some(token) = self.queue.woken.pop_front() else {
                if self.shard.is_behind() {
                    self.step(Command::GoOn)?;
                    continue;
                }
                return match self.oracle.waits_and_would_fit() {
                    Some(token) => Err(format!("{token:?} waits although a node could take it")),
                    None => Ok(()),
                };
            };
            if self.oracle.waiting().contains(&token) {
                let answer = self.answer(token);
                self.step(answer)?;
            }
        }
        Err("wake-ups do not come to an end".to_owned())
    }
}
