//! What something that waits lacks, by the counts over nodes, and the changes that would help.

use std::sync::Arc;

use crate::fairness::Amounts;
use crate::group::{Spreading, Strategy, WaitExplanation, WaitsFor};
use crate::ids::NodeId;
use crate::jobs::{Changes, Remedy, amounts_of};
use crate::request::{NodeCounts, PlacementRequest};

/// Equal bundles that have no place. A placement is one bundle.
pub(super) struct Class {
    /// The index of the first of them.
    pub(super) bundle: u32,
    pub(super) request: Arc<PlacementRequest>,
    /// How many there are.
    pub(super) count: u32,
    pub(super) counts: NodeCounts,
}

impl Class {
    pub(super) fn new(bundle: u32, request: Arc<PlacementRequest>) -> Self {
        Self { bundle, request, count: 1, counts: NodeCounts::default() }
    }

    fn count(&self) -> u64 {
        u64::from(self.count)
    }

    /// Returns how many of them a new node holds like the largest.
    fn holds(&self) -> u64 {
        self.counts.room.sample.map_or(1, |sample| sample.holds)
    }

    /// Returns what some of them ask for together.
    fn amounts(&self, count: u64) -> Amounts {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let of_one = Amounts::of(&self.request.demand);
        of_one.iter().map(|(dim, amount)| (dim, amount.saturating_mul(count))).collect()
    }
}

/// What a placement or a group lacks.
pub(super) struct Lack {
    pub(super) strategy: Strategy,
    /// The rule over a label without which it is not placed.
    pub(super) rule: Option<Spreading>,
    /// The nodes of its placed bundles.
    pub(super) own: Vec<NodeId>,
    /// How many bundles more must be placed at once.
    pub(super) least: u64,
    /// It waits for a ticket, or has one.
    pub(super) has_ticket: bool,
    /// The node like which others would help has the label of its rule.
    pub(super) is_labelled: bool,
}

impl Lack {
    /// Returns how many bundles of a class have room, each by itself.
    fn room(&self, class: &Class) -> u64 {
        let room = &class.counts.room;
        let most = match self.strategy {
            // Its placed bundles keep it from their nodes.
            Strategy::StrictSpread => room.fits.saturating_sub(self.own.len() as u64),
            Strategy::StrictPack => room.fits.saturating_mul(class.count()),
            Strategy::Pack | Strategy::Spread => room.places,
        };
        most.min(class.count())
    }

    /// Completes an explanation: what is waited for, and what would help. `named` is the class of the bundle that was asked
    /// for, with the bundle.
    ///
    /// # Panics
    /// If there is no class.
    pub(super) fn judge(
        &self,
        mut classes: Vec<Class>,
        named: Option<(usize, u32)>,
        sees_nodes: bool,
        explained: WaitExplanation,
    ) -> WaitExplanation {
        let lacks = |class: &Class| class.count() - self.room(class);
        let all: u64 = classes.iter().map(Class::count).sum();
        let room: u64 = classes.iter().map(|class| self.room(class)).sum();
        // Of very many different bundles, not all are counted for.
        let missing = self.least.min(all).saturating_sub(room);
        let first = |least: u64| classes.iter().position(|class| lacks(class) >= least);
        let of_named = named.map(|(at, _)| at).filter(|&at| missing == 0 || lacks(&classes[at]) > 0);
        // One that would be enough by itself comes first.
        let at = of_named.or_else(|| first(missing)).or_else(|| first(1)).unwrap_or(0);
        let class = &classes[at];
        let is_strict = matches!(self.strategy, Strategy::StrictPack | Strategy::StrictSpread);
        let waits_for = match missing {
            _ if self.has_ticket => WaitsFor::Ticket,
            0 if is_strict || self.rule.is_some() || classes.len() > 1 => WaitsFor::Together,
            0 => WaitsFor::Turn,
            _ if class.counts.room.fits == 0 => WaitsFor::Node,
            _ => WaitsFor::Bundles,
        };
        let seen = |node: NodeId| sees_nodes.then_some(node);
        let mut changes = Changes::default();
        let lack = lacks(class).min(missing);
        if self.rule.is_some() || self.strategy == Strategy::StrictPack {
            let is_one = self.least == 1 && self.rule.is_none() && self.own.is_empty();
            let free = if is_one { self.free_on_node(class, lack, seen) } else { None };
            changes.add(free.into_iter().chain(self.in_one_place(&classes, seen)));
        } else if missing > 0 {
            let free = self.free_on_node(class, lack, seen);
            changes.add(free.into_iter().chain(self.more_nodes(class, lack, seen)));
        } else if waits_for == WaitsFor::Together {
            // New nodes for all of them are enough, whatever the present ones have.
            let mut left = self.least;
            for class in &classes {
                let count = class.count().min(left);
                left -= count;
                changes.add(self.more_nodes(class, count, seen));
            }
        }
        let fit = u32::try_from(room.min(self.least)).expect("at most GROUP_BUNDLES_MAX");
        let index = named.filter(|&(of, _)| of == at).map_or(class.bundle, |(_, index)| index);
        let bundle = explained.group.is_some().then_some(index);
        let nodes = Some(std::mem::take(&mut classes[at].counts));
        WaitExplanation {
            bundle,
            waits_for,
            fit: explained.fit + fit,
            nodes,
            changes: changes.into_vec(),
            ..explained
        }
    }

    /// Returns what must come free on one node, if only one bundle lacks room.
    fn free_on_node(
        &self,
        class: &Class,
        lack: u64,
        seen: impl Fn(NodeId) -> Option<NodeId>,
    ) -> Option<Remedy> {
        let nearest = class.counts.room.nearest.as_ref();
        // Nothing that comes free makes a node larger. What its own bundles hold there is not given back.
        let nearest = nearest.filter(|of| lack == 1 && of.is_large_enough && !self.own.contains(&of.node))?;
        if self.strategy == Strategy::StrictSpread && class.counts.room.fits > 0 {
            // The nearest node may be one that has room already.
            return None;
        }
        let amounts = amounts_of(&nearest.lacks);
        Some(Remedy::FreeOnNode { node: seen(nearest.node), amounts, of: None })
    }

    /// Returns how many more nodes like the largest would do for some bundles, or larger ones if none is large enough.
    fn more_nodes(
        &self,
        class: &Class,
        count: u64,
        seen: impl Fn(NodeId) -> Option<NodeId>,
    ) -> Option<Remedy> {
        // No other node helps where nodes are named.
        if count == 0 || class.request.candidates.is_some() {
            return None;
        }
        let holds = if self.strategy == Strategy::StrictSpread { 1 } else { class.holds() };
        let count = count.div_ceil(holds);
        Some(match class.counts.room.sample {
            Some(sample) => Remedy::MoreNodes { count, like: seen(sample.node) },
            None => Remedy::LargerNodes { count, amounts: class.amounts(1) },
        })
    }

    /// Returns what helps where all bundles must be on one node, or on nodes with one value of a label.
    fn in_one_place(&self, classes: &[Class], seen: impl Fn(NodeId) -> Option<NodeId>) -> Option<Remedy> {
        let class = classes.first()?;
        let is_spread = matches!(self.rule, Some(Spreading::Spread { .. }));
        // Where some bundles are, the others must follow. Of several values, it depends on all of them which one is too full.
        if is_spread || !self.own.is_empty() || class.request.candidates.is_some() {
            return None;
        }
        let is_alone = classes.len() == 1;
        if self.strategy == Strategy::StrictPack {
            let fits_empty = is_alone && class.counts.room.sample.is_some() && class.holds() >= self.least;
            if fits_empty && self.is_labelled {
                return self.more_nodes(class, self.least, seen);
            }
            if self.rule.is_some() {
                return None;
            }
            let mut amounts = Amounts::zero();
            let mut left = self.least;
            for class in classes {
                // With several kinds, it is not known which of them are placed.
                let count = if is_alone { left.min(class.count()) } else { class.count() };
                left -= count.min(left);
                amounts.add(&class.amounts(count));
            }
            return Some(Remedy::LargerNodes { count: 1, amounts });
        }
        // New nodes like one node have its value.
        let is_known = is_alone && self.is_labelled && class.counts.room.sample.is_some();
        if is_known { self.more_nodes(class, self.least, seen) } else { None }
    }
}

#[cfg(test)]
mod tests;
