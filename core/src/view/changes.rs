//! The changes from one view of a shard to a later one, in portions. Followers receive these.
//!
//! A [`Step`] leads from a view, or from nothing, to a later view. It has six stages: holds that ended,
//! allocations that ended, nodes that are gone, new or changed nodes, new allocations, and new holds. Endings
//! come first, because an id may be reused in another place: a machine that comes back gets its old id. This
//! order also ensures that no allocation is reported without its node. A follower that has applied a whole
//! step to the older view has the newer one. In between, it has neither.
//!
//! A portion ends when its reader says so or after a bounded number of comparisons. Its cursor says where the
//! next portion continues. The cost of a whole step is proportional to what the two views do not share.

use std::ops::ControlFlow;

use super::image::{AllocationImage, AllocationView, ColdImage, HoldImage, HotImage};
use super::{Mirror, View};
use crate::ids::{AllocationId, StatementId};
use crate::index::Slot;
use crate::node::NodeRegistration;
use crate::planted::{PlantedBug, is_planted};

/// The number of places that are compared together for changes of nodes.
const TOGETHER: usize = 256;

/// The kinds of changes to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeKinds {
    /// Changes of nodes.
    pub nodes: bool,
    /// Changes of allocations.
    pub allocations: bool,
    /// Changes of holds.
    pub holds: bool,
}

impl ChangeKinds {
    /// All kinds.
    pub const ALL: Self = Self { nodes: true, allocations: true, holds: true };
}

/// One change.
#[derive(Debug)]
pub enum Change<'a> {
    /// A statement no longer holds something on a node, or the node is gone.
    HoldEnded(&'a NodeRegistration, &'a HoldImage),
    /// An allocation of a node ended. True if it is known that its lease ran out.
    AllocationEnded(&'a NodeRegistration, AllocationId, bool),
    /// A node is gone.
    NodeGone(&'a NodeRegistration),
    /// A node is new or changed.
    Node {
        /// The current hot image.
        hot: &'a HotImage,
        /// The current cold image.
        cold: &'a ColdImage,
        /// The previous cold image. `None`: the node is new.
        before: Option<&'a ColdImage>,
    },
    /// An allocation on a node is new or changed.
    Allocation(&'a NodeRegistration, AllocationView),
    /// A hold on a node is new or changed.
    Hold(&'a NodeRegistration, &'a HoldImage),
}

/// The position where a portion of a step ended. Any value is safe, but one that no portion returned skips
/// changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeCursor {
    /// The stage, below [`STAGES`](Self::STAGES).
    pub stage: u8,
    /// The next place to compare.
    pub place: u32,
    /// The number of holds at that place that were already reported.
    pub within: u32,
}

impl ChangeCursor {
    /// The number of stages of a step.
    pub const STAGES: u8 = 6;
}

/// The changes from one view to a later one of the same shard, or from nothing to a view.
pub struct Step<'a> {
    from: Option<&'a View>,
    to: &'a View,
    kinds: ChangeKinds,
    /// The allocations whose lease ran out in between, in order of id.
    expired: Vec<AllocationId>,
    nothing: Mirror,
}

/// The remaining budget of a portion, and its receiver.
struct Portion<'v, F> {
    at: ChangeCursor,
    looks: usize,
    visit: &'v mut F,
}

impl<F: FnMut(Change<'_>) -> bool> Portion<'_, F> {
    /// Called before a place is compared. Breaks if the budget is spent.
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

    /// Reports the one change at a place.
    fn tell(&mut self, place: u32, change: Change<'_>) -> ControlFlow<()> {
        (self.at.place, self.at.within) = (place + 1, 0);
        if (self.visit)(change) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    /// Reports those of `holds` that are not in `others`.
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

/// Returns whether two images are of the same node.
fn same_node(one: &ColdImage, other: &ColdImage) -> bool {
    one.registration.id == other.registration.id
}

impl<'a> Step<'a> {
    /// Creates the step from `from` to `to`. `None`: from nothing.
    ///
    /// # Panics
    /// Panics if the two views are of different shards.
    #[must_use]
    pub fn new(from: Option<&'a View>, to: &'a View, kinds: ChangeKinds) -> Self {
        let same = from.is_none_or(|from| from.head().shard == to.head().shard);
        assert!(same, "views of two shards have nothing in common");
        let expired = from.map_or_else(Vec::new, |from| to.expired_since(from));
        Self { from, to, kinds, expired, nothing: Mirror::default() }
    }

    fn older(&self) -> &Mirror {
        self.from.map_or(&self.nothing, View::mirror)
    }

    /// Reports the changes from `at` on. Stops after the change for which `visit` returns `false`, or when
    /// `looks` places were compared (nodes count twice). Returns where to continue, or `None` if the step is
    /// done.
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
        // A step from nothing has no endings.
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
                    let has_expired = self.expired.binary_search(&old.id).is_ok();
                    let node = registration(older, slot);
                    portion.tell(place, Change::AllocationEnded(node, old.id, has_expired))
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

    /// Hot and cold images are in two arrays. So several places of both are compared, then reported in order.
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

/// Spends one look. Without one, breaks and lowers `end` to this slot.
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
