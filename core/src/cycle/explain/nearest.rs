//! The domain that comes nearest to what a job needs, by how many tasks of each class domains have room for.
//!
//! The job is tried in one domain after another by these numbers alone: its parts one after the other, each in the domain with the
//! least room that suffices. What is placed takes room from the same class only, so classes may seem to fit together that do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::domains::DomainRooms;
use crate::cycle::topology::{DomainId, Tree};

/// Tasks of a class that a job needs: all of them, or those of a task group that must be in one domain.
#[derive(Debug)]
pub(super) struct Part {
    /// The first of its task groups.
    pub(super) group: u32,
    pub(super) class: usize,
    /// The tier that the hard rule of the task group names.
    pub(super) tier: Option<usize>,
    /// The smallest domain around the tasks of the group that have nodes.
    pub(super) home: Option<DomainId>,
    pub(super) needed: u64,
    /// How many equal task groups there are with such a rule. Each has a domain of its own.
    pub(super) times: u64,
}

impl Part {
    /// Returns whether another part can be counted together with this one.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let is_free = |part: &Self| part.tier.is_none() || part.home.is_none();
        let is_equal = self.tier.is_none() || self.needed == other.needed;
        (self.class, self.tier) == (other.class, other.tier) && is_equal && is_free(self) && is_free(other)
    }

    /// Adds such a part.
    pub(super) fn add(&mut self, other: &Self) {
        match self.tier {
            Some(_) => self.times += other.times,
            None => self.needed += other.needed,
        }
    }
}

/// What the nearest domain lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lacking {
    pub(super) part: usize,
    /// The domain in which tasks of this part lack room. `None`: there is no domain of the tier.
    pub(super) domain: Option<DomainId>,
    /// How many of them lack room there.
    pub(super) tasks: u64,
    /// How many tasks of the job lack room.
    pub(super) in_all: u64,
    /// Each part has room by itself, but not all of them together.
    pub(super) is_together: bool,
}

/// What a search looks at.
pub(super) struct Field<'a> {
    pub(super) tree: &'a Tree,
    /// The tier that the rule of the job names.
    pub(super) widest: Option<usize>,
    pub(super) parts: &'a [Part],
    /// What domains have room for, of each class.
    pub(super) rooms: &'a [Arc<DomainRooms>],
}

impl Field<'_> {
    fn places(&self, class: usize, id: DomainId) -> Option<u64> {
        self.rooms.get(class)?.get(&id).map(|of| of.room.places)
    }

    /// Returns whether a domain has a node that could hold a task of a class if it were empty.
    fn suits(&self, class: usize, id: DomainId) -> bool {
        let of = self.rooms.get(class).and_then(|rooms| rooms.get(&id));
        of.is_some_and(|of| of.room.sample.is_some())
    }

    /// Returns the first domain in which a part may be, inside of another one, and whether it is the only one.
    fn first_of(&self, part: &Part, scope: DomainId) -> (Option<DomainId>, bool) {
        match (part.tier, part.home) {
            (None, _) => (Some(scope), true),
            (Some(_), None) => (Some(scope), false),
            (Some(tier), Some(home)) => {
                let widest = tier.min(self.tree.tier(scope));
                (self.tree.up_to(home, widest).last(), true)
            }
        }
    }
}

/// A try to place a job in a domain.
struct Try {
    scope: DomainId,
    /// The part that is placed next, and the next domain to look at for it. `None`: it is to be begun.
    part: usize,
    at: Option<Cursor>,
    /// How much of each class is placed in a domain.
    taken: BTreeMap<(usize, DomainId), u64>,
    lacking: u64,
    /// What the first part lacks that lacks anything.
    first: Option<Lacking>,
    /// Where the first part of all has room.
    has_room: Option<DomainId>,
}

/// Where a part is looked for.
struct Cursor {
    next: Option<DomainId>,
    is_only: bool,
    /// How often the part was placed.
    fits: u64,
    /// The domain with the least room that suffices.
    least: Option<(u64, DomainId)>,
    /// The domain with most room of those that do not suffice, and whether nodes like those there would help.
    most: Option<(u64, bool, DomainId)>,
}

impl Try {
    fn new(scope: DomainId) -> Self {
        let taken = BTreeMap::new();
        Self { scope, part: 0, at: None, taken, lacking: 0, first: None, has_room: None }
    }

    /// Returns the domain and those around it, up to the one where the job is tried.
    fn around<'t>(&self, tree: &'t Tree, id: DomainId) -> impl Iterator<Item = DomainId> + use<'t> {
        let scope = self.scope;
        let next = move |&id: &DomainId| (id != scope && id != DomainId::ROOT).then(|| tree.parent(id));
        std::iter::successors(Some(id), next)
    }

    /// Returns how many more tasks of a class have room in a domain.
    fn left(&self, field: &Field<'_>, class: usize, id: DomainId) -> u64 {
        if field.places(class, id).is_none() {
            return 0;
        }
        let left = |id| {
            let taken = self.taken.get(&(class, id)).copied().unwrap_or(0);
            field.places(class, id).map(|places| places.saturating_sub(taken))
        };
        self.around(field.tree, id).filter_map(left).min().unwrap_or(0)
    }

    fn take(&mut self, field: &Field<'_>, class: usize, id: DomainId, count: u64) {
        for id in self.around(field.tree, id) {
            *self.taken.entry((class, id)).or_default() += count;
        }
    }

    /// Looks at one domain for the part. Returns false once all parts are done.
    fn step(&mut self, field: &Field<'_>) -> bool {
        let Some(part) = field.parts.get(self.part) else { return false };
        let mut at = self.at.take().unwrap_or_else(|| {
            let (next, is_only) = field.first_of(part, self.scope);
            Cursor { next, is_only, fits: 0, least: None, most: None }
        });
        match at.next.filter(|&id| at.is_only || field.tree.is_within(id, self.scope)) {
            Some(id) => {
                let is_widest = |tier| field.tree.is_widest_in(id, tier, self.scope);
                if at.is_only || part.tier.is_some_and(is_widest) {
                    self.look_at(field, part, id, &mut at);
                }
                at.next = if at.is_only { None } else { field.tree.next(id) };
                self.at = Some(at);
            }
            None => self.close(field, part, at),
        }
        true
    }

    fn look_at(&mut self, field: &Field<'_>, part: &Part, id: DomainId, at: &mut Cursor) {
        let mut left = self.left(field, part.class, id);
        if part.times > 1 {
            let count = (left / part.needed).min(part.times - at.fits);
            if count > 0 {
                self.take(field, part.class, id, count * part.needed);
                at.fits += count;
                left -= count * part.needed;
                at.least = Some((left, id));
            }
        } else if left >= part.needed {
            if at.least.is_none_or(|(least, _)| left < least) {
                at.least = Some((left, id));
            }
            return;
        }
        let suits = field.suits(part.class, id);
        if at.most.is_none_or(|(most, of_most, _)| (left, suits) > (most, of_most)) {
            at.most = Some((left, suits, id));
        }
    }

    /// Places the part, and begins with the next one.
    fn close(&mut self, field: &Field<'_>, part: &Part, mut at: Cursor) {
        if let (1, Some((_, id))) = (part.times, at.least) {
            self.take(field, part.class, id, part.needed);
            at.fits = 1;
        }
        if self.part == 0 {
            self.has_room = at.least.map(|(_, id)| id);
        }
        let missing = part.times - at.fits;
        if missing > 0 {
            let (left, _, id) = at.most.unwrap_or((0, false, DomainId::ROOT));
            let domain = at.most.map(|_| id);
            self.lacking += missing * part.needed - left;
            let tasks = part.needed - left;
            let lacking = Lacking { part: self.part, domain, tasks, in_all: 0, is_together: false };
            self.first.get_or_insert(lacking);
            self.take(field, part.class, id, part.needed);
        }
        self.part += 1;
    }
}

/// The job as it was tried in the nearest domain so far.
struct Tried {
    lacking: u64,
    /// Whether nodes like those there would help.
    suits: bool,
    first: Option<Lacking>,
    has_room: Option<DomainId>,
}

/// A search for the nearest domain, at work.
pub(super) struct Search {
    /// The next domain that may be one to try the job in.
    next: Option<DomainId>,
    /// Whether it is the only one.
    is_only: bool,
    trying: Option<Try>,
    best: Option<Tried>,
}

impl Search {
    /// Begins to search for a job. `home` is the widest domain in which its other tasks keep it.
    pub(super) fn new(tree: &Tree, widest: Option<usize>, home: Option<DomainId>) -> Self {
        let first = match widest {
            None => Some(DomainId::ROOT),
            Some(_) => home.or_else(|| tree.next(DomainId::ROOT)),
        };
        Self { next: first, is_only: widest.is_none() || home.is_some(), trying: None, best: None }
    }

    /// Looks at domains until `budget` were looked at. Returns how many were, and whether the search is over.
    pub(super) fn step(&mut self, field: &Field<'_>, budget: u64) -> (u64, bool) {
        for spent in 0..budget {
            if let Some(trying) = &mut self.trying {
                if !trying.step(field) {
                    self.close(field);
                }
                continue;
            }
            let Some(id) = self.next else { return (spent + 1, true) };
            let is_widest = |widest| field.tree.is_widest_in(id, widest, DomainId::ROOT);
            if self.is_only || field.widest.is_some_and(is_widest) {
                self.trying = Some(Try::new(id));
            }
            self.next = if self.is_only { None } else { field.tree.next(id) };
        }
        (budget, false)
    }

    /// Ends a try.
    fn close(&mut self, field: &Field<'_>) {
        let Some(Try { lacking, first, has_room, .. }) = self.trying.take() else { return };
        let suits =
            first.is_some_and(|of| of.domain.is_some_and(|id| field.suits(field.parts[of.part].class, id)));
        let is_nearer = |best: &Tried| (lacking, !suits) < (best.lacking, !best.suits);
        if self.best.as_ref().is_none_or(is_nearer) {
            self.best = Some(Tried { lacking, suits, first, has_room });
        }
        if lacking == 0 {
            self.next = None;
        }
    }

    /// Returns what the nearest domain lacks. `None`: nothing.
    pub(super) fn lacking(&self, parts: &[Part]) -> Option<Lacking> {
        let named = parts.first()?;
        let of_named = |domain, is_together| {
            let tasks = named.needed;
            Lacking { part: 0, domain, tasks, in_all: tasks, is_together }
        };
        let Some(best) = &self.best else {
            let in_all = parts.iter().map(|part| part.needed * part.times).sum();
            return Some(Lacking { in_all, ..of_named(None, false) });
        };
        match best.first {
            Some(first) => Some(Lacking { in_all: best.lacking, ..first }),
            // New nodes for one part are enough, whatever the others take.
            None if parts.len() > 1 || named.times > 1 => Some(of_named(best.has_room, true)),
            None => None,
        }
    }
}
