//! What changed from one view of a shard to a later one, in portions: what a follower is told.
//!
//! A [`Step`] leads from a view, or from nothing, to a later view. It goes through its changes in six
//! stages: holds that ended, allocations that ended, nodes that are gone; nodes that are new or
//! otherwise, allocations that began, holds that began. What ends comes before what begins, because an
//! id may come again in another place (a machine that comes back has its id again), and so that no
//! allocation is ever told without its node. Whoever has applied all of a step to what it had of the
//! older view has the newer one; in between it has neither.
//!
//! A portion ends where its reader says or after a bounded number of looks, and its cursor says where
//! the next goes on. The cost of a whole step is what the two views do not share.

use std::ops::ControlFlow;

use super::image::{AllocationImage, AllocationView, ColdImage, HoldImage, HotImage};
use super::{Mirror, View};
use crate::ids::{AllocationId, StatementId};
use crate::index::Slot;
use crate::node::NodeRegistration;
use crate::planted::{PlantedBug, is_planted};

/// Places that are looked at together while nodes are compared.
const TOGETHER: usize = 256;

/// Which changes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeKinds {
    /// Of nodes.
    pub nodes: bool,
    /// Of allocations.
    pub allocations: bool,
    /// Of what statements hold.
    pub holds: bool,
}

impl ChangeKinds {
    /// All of them.
    pub const ALL: Self = Self { nodes: true, allocations: true, holds: true };
}

/// One change.
#[derive(Debug)]
pub enum Change<'a> {
    /// A statement holds something no more on a node, or the node is gone.
    HoldEnded(&'a NodeRegistration, &'a HoldImage),
    /// An allocation of a node ended.
    AllocationEnded(&'a NodeRegistration, AllocationId),
    /// A node is gone.
    NodeGone(&'a NodeRegistration),
    /// A node that is new or not as it was.
    Node {
        /// As it is.
        hot: &'a HotImage,
        /// As it is.
        cold: &'a ColdImage,
        /// What placements seldom change, as it was; none: the node is new.
        before: Option<&'a ColdImage>,
    },
    /// An allocation that is new, or not as it was, on a node.
    Allocation(&'a NodeRegistration, AllocationView),
    /// A hold that is new, or not as it was, on a node.
    Hold(&'a NodeRegistration, &'a HoldImage),
}

/// Where a portion of a step ended. Any value is safe: one that no portion gave leaves changes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeCursor {
    /// Which of the stages, below [`STAGES`](Self::STAGES).
    pub stage: u8,
    /// The next place to be looked at.
    pub place: u32,
    /// Holds of that place that were told already.
    pub within: u32,
}

impl ChangeCursor {
    /// How many stages a step has.
    pub const STAGES: u8 = 6;
}

/// What leads from one view to a later one of the same shard, or from nothing to a view.
pub struct Step<'a> {
    from: Option<&'a View>,
    to: &'a View,
    kinds: ChangeKinds,
    nothing: Mirror,
}

/// What a portion may still do, and who is told.
struct Portion<'v, F> {
    at: ChangeCursor,
    looks: usize,
    visit: &'v mut F,
}

impl<F: FnMut(Change<'_>) -> bool> Portion<'_, F> {
    /// Before a place is looked at: whether it may be.
    fn look(&mut self, place: u32) -> ControlFlow<()> {
        if self.at.place != place {
            (self.at.place, self.at.within) = (place, 0);
        }
        if self.looks == 0 {
            return ControlFlow::Break(());
        }
        self.looks -= 1;
        ControlFlow::Continue(())
    }

    /// Tells the one change of a place.
    fn tell(&mut self, place: u32, change: Change<'_>) -> ControlFlow<()> {
        (self.at.place, self.at.within) = (place + 1, 0);
        if (self.visit)(change) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Tells those of `holds` that are not in `others`.
    fn tell_holds<'a>(
        &mut self,
        holds: &'a [HoldImage],
        others: &[HoldImage],
        change: impl Fn(&'a HoldImage) -> Change<'a>,
    ) -> ControlFlow<()> {
        let key = |hold: &HoldImage| -> (StatementId, u16) { (hold.statement, hold.operation) };
        let mut others: Vec<&HoldImage> = others.iter().collect();
        others.sort_unstable_by_key(|&hold| key(hold));
        let is_there = |hold: &HoldImage| {
            let at = others.binary_search_by_key(&key(hold), |&other| key(other));
            at.is_ok_and(|at| others[at] == hold)
        };
        let told = self.at.within as usize;
        for hold in holds.iter().filter(|&hold| !is_there(hold)).skip(told) {
            self.at.within += 1;
            if !(self.visit)(change(hold)) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// The same node, as two views have it.
fn same_node(one: &ColdImage, other: &ColdImage) -> bool {
    one.registration.id == other.registration.id
}

impl<'a> Step<'a> {
    /// The step to `to` from `from`; none: from nothing.
    ///
    /// # Panics
    /// When the two are of different shards.
    #[must_use]
    pub fn new(from: Option<&'a View>, to: &'a View, kinds: ChangeKinds) -> Self {
        let same = from.is_none_or(|from| from.head().shard == to.head().shard);
        assert!(same, "views of two shards have nothing in common");
        Self { from, to, kinds, nothing: Mirror::default() }
    }

    fn older(&self) -> &Mirror {
        self.from.map_or(&self.nothing, View::mirror)
    }

    /// Tells the changes from `at` on, until `visit` says that it wants no more after this one, or
    /// `looks` places were compared (nodes count twice). Where to go on; none: the step is done.
    pub fn portion<F: FnMut(Change<'_>) -> bool>(
        &self,
        at: ChangeCursor,
        looks: usize,
        visit: &mut F,
    ) -> Option<ChangeCursor> {
        let mut portion = Portion { at, looks, visit };
        while portion.at.stage < ChangeCursor::STAGES {
            if self.stage(&mut portion).is_break() {
                return Some(portion.at);
            }
            portion.at = ChangeCursor { stage: portion.at.stage + 1, place: 0, within: 0 };
        }
        None
    }

    fn stage<F: FnMut(Change<'_>) -> bool>(&self, portion: &mut Portion<'_, F>) -> ControlFlow<()> {
        let Self { kinds, .. } = self;
        // From nothing, nothing ended.
        let ends = self.from.is_some();
        match portion.at.stage {
            0 if kinds.holds && ends => self.holds(portion, false),
            1 if kinds.allocations && ends => self.allocations_ended(portion),
            2 if kinds.nodes && ends => self.nodes_gone(portion),
            3 if kinds.nodes => self.nodes(portion),
            4 if kinds.allocations => self.allocations(portion),
            5 if kinds.holds => self.holds(portion, true),
            _ => ControlFlow::Continue(()),
        }
    }

    fn holds<F: FnMut(Change<'_>) -> bool>(
        &self,
        portion: &mut Portion<'_, F>,
        begun: bool,
    ) -> ControlFlow<()> {
        let from = portion.at.place;
        self.to.mirror().cold.unshared_from(&self.older().cold, from, |slot, new, old| {
            portion.look(slot)?;
            let (there, other) = if begun { (new, old) } else { (old, new) };
            let Some(there) = there.as_deref().filter(|there| !there.holds.is_empty()) else {
                return ControlFlow::Continue(());
            };
            let others = match other.as_deref() {
                Some(other) if std::ptr::eq(there, other) => return ControlFlow::Continue(()),
                Some(other) if same_node(there, other) => &other.holds[..],
                _ => &[],
            };
            let node: &NodeRegistration = &there.registration;
            portion.tell_holds(&there.holds, others, |hold| {
                if begun { Change::Hold(node, hold) } else { Change::HoldEnded(node, hold) }
            })
        })
    }

    fn allocations_ended<F: FnMut(Change<'_>) -> bool>(
        &self,
        portion: &mut Portion<'_, F>,
    ) -> ControlFlow<()> {
        let from = portion.at.place;
        let older = self.older();
        self.to.mirror().allocations.unshared_from(&older.allocations, from, |place, new, old| {
            portion.look(place)?;
            match old.node {
                Some(slot) if new.node.is_none() || new.id != old.id => {
                    portion.tell(place, Change::AllocationEnded(registration(older, slot), old.id))
                }
                _ => ControlFlow::Continue(()),
            }
        })
    }

    fn allocations<F: FnMut(Change<'_>) -> bool>(&self, portion: &mut Portion<'_, F>) -> ControlFlow<()> {
        let from = portion.at.place;
        let newer = self.to.mirror();
        newer.allocations.unshared_from(&self.older().allocations, from, |place, new, old| {
            portion.look(place)?;
            match new.node {
                Some(slot) if !AllocationImage::is_same(new, old) => {
                    let (image, more) = newer.allocation(place).expect("just seen");
                    portion.tell(place, Change::Allocation(registration(newer, slot), image.view(more)))
                }
                _ => ControlFlow::Continue(()),
            }
        })
    }

    fn nodes_gone<F: FnMut(Change<'_>) -> bool>(&self, portion: &mut Portion<'_, F>) -> ControlFlow<()> {
        let from = portion.at.place;
        let older = self.older();
        self.to.mirror().nodes.unshared_from(&older.nodes, from, |slot, new, old| {
            portion.look(slot)?;
            if old.state.is_some() && (new.state.is_none() || new.id != old.id) {
                return portion.tell(slot, Change::NodeGone(registration(older, slot)));
            }
            ControlFlow::Continue(())
        })
    }

    /// What placements change and what they seldom do stand in two arrays: some places of both are
    /// compared, then told in order.
    fn nodes<F: FnMut(Change<'_>) -> bool>(&self, portion: &mut Portion<'_, F>) -> ControlFlow<()> {
        let newer = self.to.mirror();
        let older = self.older();
        let mut slots: Vec<Slot> = Vec::new();
        loop {
            if portion.looks == 0 {
                return ControlFlow::Break(());
            }
            slots.clear();
            let from = portion.at.place;
            let budget = portion.looks.min(TOGETHER);
            let mut end = None;
            let mut left = budget;
            let _ = newer.nodes.unshared_from(&older.nodes, from, |slot, new, old| {
                count(&mut left, slot, &mut end)?;
                slots.extend((new != old).then_some(slot));
                ControlFlow::Continue(())
            });
            let mut left_cold = budget;
            let _ = newer.cold.unshared_from(&older.cold, from, |slot, new, old| {
                count(&mut left_cold, slot, &mut end)?;
                slots.extend((!is_same_image(new, old)).then_some(slot));
                ControlFlow::Continue(())
            });
            portion.looks -= budget - left.min(left_cold);
            slots.retain(|&slot| end.is_none_or(|end| slot < end));
            slots.sort_unstable();
            slots.dedup();
            for &slot in &slots {
                let (Some(hot), Some(cold)) = (self.to.hot(slot), self.to.cold(slot)) else { continue };
                let before = older.cold.get(slot).and_then(Option::as_deref);
                let before = before.filter(|before| same_node(before, cold));
                portion.tell(slot, Change::Node { hot, cold, before })?;
            }
            match end {
                Some(end) => portion.at.place = end + u32::from(is_planted(PlantedBug::PortionSkipsNode)),
                None => return ControlFlow::Continue(()),
            }
        }
    }
}

/// One look less; where none is left, that is the end, if none before it is.
fn count(left: &mut usize, slot: Slot, end: &mut Option<Slot>) -> ControlFlow<()> {
    if *left == 0 {
        *end = Some(end.map_or(slot, |end| end.min(slot)));
        return ControlFlow::Break(());
    }
    *left -= 1;
    ControlFlow::Continue(())
}

fn is_same_image(one: &Option<std::sync::Arc<ColdImage>>, other: &Option<std::sync::Arc<ColdImage>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => std::sync::Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

fn registration(mirror: &Mirror, slot: Slot) -> &NodeRegistration {
    let cold = mirror.cold.get(slot).and_then(Option::as_deref);
    &cold.expect("a node has a cold image").registration
}
