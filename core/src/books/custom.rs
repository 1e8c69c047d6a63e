//! The books of custom resources on one node.

use std::sync::Arc;

use crate::ids::ResourceId;
use crate::resource::{Amount, UnitAssignment, UnitAssignments, UnitBooks};

/// The books of one custom resource on one node.
///
/// For a unit-instance kind, `available` and `shortfall` are sums over the units. Whether a request fits is
/// decided per unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CustomBook {
    pub(crate) id: ResourceId,
    pub(crate) total: Amount,
    pub(crate) available: Amount,
    pub(crate) shortfall: Amount,
    /// The books of the units, if this is a unit-instance kind.
    pub(crate) units: Option<Box<UnitBooks>>,
}

/// Takes `amount` from `available` as far as it goes, and adds the remainder to `shortfall`.
pub(crate) fn take_over(available: &mut Amount, shortfall: &mut Amount, amount: Amount) {
    let covered = amount.min(*available);
    *available = available.minus(covered);
    *shortfall = shortfall.plus(amount.minus(covered));
    assert!(available.is_zero() || shortfall.is_zero(), "what is available pays for a shortfall first");
}

/// Returns what an allocation holds of the unit-instance kind `id`.
pub(crate) fn units_of(units: Option<&Arc<UnitAssignments>>, id: ResourceId) -> UnitAssignment {
    let units = units.map_or(&[][..], |units| units.as_slice());
    let at = units.binary_search_by_key(&id, |&(id, _)| id);
    units[at.unwrap_or_else(|_| panic!("an allocation of resource {} says no units", id.0))].1
}

impl CustomBook {
    /// Creates a book with capacity `total`, all of it free.
    pub(crate) fn new(id: ResourceId, total: Amount) -> Self {
        let units = id.is_unit_instance().then(|| Box::new(UnitBooks::with_total(total)));
        Self { id, total, available: total, shortfall: Amount::ZERO, units }
    }

    /// Returns the room that a request for `amount` is compared with.
    pub(crate) fn room_for(&self, amount: Amount) -> Amount {
        self.units.as_ref().map_or(self.available, |units| units.room_for(amount))
    }

    /// Takes `amount`, which must fit. For a unit-instance kind, returns the units that were taken.
    pub(crate) fn take(&mut self, amount: Amount) -> Option<UnitAssignment> {
        let is_short = self.units.is_none() && !self.shortfall.is_zero();
        assert!(amount.is_zero() || !is_short, "a resource with a shortfall has something free");
        self.available = self.available.minus(amount);
        let units = self.units.as_mut()?;
        let assignment = units.choose(amount).expect("the node was checked to fit");
        units.take(assignment);
        Some(assignment)
    }

    /// Takes what an allocation already holds, even beyond capacity.
    pub(crate) fn take_held(&mut self, amount: Amount, held: Option<&Arc<UnitAssignments>>) {
        if let Some(units) = &mut self.units {
            units.take_held(units_of(held, self.id));
            (self.available, self.shortfall) = (units.free(), units.short());
        } else {
            take_over(&mut self.available, &mut self.shortfall, amount);
        }
        assert!(self.available <= self.total, "more of a custom resource free than there is");
    }

    /// Gives back what an allocation held. The shortfall is reduced first.
    pub(crate) fn give(&mut self, amount: Amount, held: Option<&Arc<UnitAssignments>>) {
        if let Some(units) = &mut self.units {
            units.give(units_of(held, self.id));
            (self.available, self.shortfall) = (units.free(), units.short());
        } else {
            let paid = amount.min(self.shortfall);
            self.shortfall = self.shortfall.minus(paid);
            self.available = self.available.plus(amount.minus(paid));
        }
        assert!(self.available <= self.total, "more of a custom resource free than there is");
    }

    /// Sets the capacity to `total`. What is in use stays in use.
    fn resize(&mut self, total: Amount) {
        if let Some(units) = &mut self.units {
            units.resize(total);
            (self.available, self.shortfall) = (units.free(), units.short());
        } else {
            let used = self.total.plus(self.shortfall).minus(self.available);
            self.available = total.saturating_minus(used);
            self.shortfall = used.saturating_minus(total);
        }
        self.total = total;
        assert!(self.available <= total, "more of a custom resource free than the new capacity");
    }
}

/// Returns the book of `id` in `books`, which is sorted by id. Inserts one without capacity if there is none.
pub(crate) fn book_or_new(books: &mut Vec<CustomBook>, id: ResourceId) -> &mut CustomBook {
    let at = books.binary_search_by_key(&id, |book| book.id).unwrap_or_else(|at| {
        books.insert(at, CustomBook::new(id, Amount::ZERO));
        at
    });
    assert!(at == 0 || books[at - 1].id < id, "the books of a node are not in order of id");
    &mut books[at]
}

/// Replaces the capacities. What is in use stays in use. Books with neither capacity nor shortfall are removed.
pub(crate) fn respecify(books: &mut Vec<CustomBook>, totals: &[(ResourceId, Amount)]) {
    for book in books.iter_mut() {
        let total =
            totals.binary_search_by_key(&book.id, |&(id, _)| id).map_or(Amount::ZERO, |at| totals[at].1);
        book.resize(total);
    }
    for &(id, total) in totals {
        if let Err(at) = books.binary_search_by_key(&id, |book| book.id) {
            assert!(at == 0 || books[at - 1].id < id, "the books of a node are not in order of id");
            books.insert(at, CustomBook::new(id, total));
        }
    }
    books.retain(|book| !book.total.is_zero() || !book.shortfall.is_zero());
}
