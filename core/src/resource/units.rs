//! Unit-instance resources other than GPUs (a MIG profile, an NPU). As in Ray, each unit of a kind on a node
//! has an id and its own free part.
//!
//! The rule is that of GPUs. A request below one takes a part of *one* unit. From one upwards, it takes
//! wholly free units. Parts of different units never add up. The configuration names the unit-instance kinds,
//! and the kind's [id](crate::ids::ResourceId) contains the flag, so no lookup is needed.

use std::cmp::Reverse;

use crate::ids::ResourceId;
use crate::limits::UNIT_INSTANCES_MAX;
use crate::resource::{Amount, GPU_UNIT};

/// The shortfall of one instance, in 1/10,000, from which on another adoption is rejected.
pub(crate) const SHORTFALL_MAX: u32 = 1 << 31;

/// The units of one kind that an allocation holds: those in `mask`, `part` of each (1/10,000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitAssignment {
    /// Bit `i` is unit `i`.
    pub mask: u64,
    /// The amount held of each unit: 10,000 for whole units, less for a part of one.
    pub part: u16,
}

impl UnitAssignment {
    /// Returns the unit ids, ascending.
    pub fn instances(self) -> impl Iterator<Item = u8> {
        (0..UNIT_INSTANCES_MAX as u8).filter(move |i| self.mask >> i & 1 == 1)
    }

    /// Returns the sum over the units, in 1/10,000.
    #[must_use]
    pub fn units(self) -> i64 {
        i64::from(self.mask.count_ones()) * i64::from(self.part)
    }
}

/// The units that an allocation holds of each unit-instance kind in its demand, in order of kind.
pub type UnitAssignments = Vec<(ResourceId, UnitAssignment)>;

/// Checks that a node can have `total` of a unit-instance kind.
///
/// # Errors
/// Returns the problem and the remedy.
pub fn check_unit_total(total: Amount) -> Result<(), String> {
    if total.units() % i64::from(GPU_UNIT) != 0 {
        return Err(format!("{total} of a unit-instance resource is not whole: give a whole number"));
    }
    if total.units() / i64::from(GPU_UNIT) > UNIT_INSTANCES_MAX as i64 {
        return Err(format!(
            "{total} units: a node has at most {UNIT_INSTANCES_MAX} of a unit-instance resource"
        ));
    }
    Ok(())
}

/// Checks that `amount` of a unit-instance kind can be requested.
///
/// # Errors
/// When the amount is above one and not whole, or more than a node can have. The message states the problem
/// and the remedy.
pub fn check_unit_request(amount: Amount) -> Result<(), String> {
    if amount.units() < i64::from(GPU_UNIT) {
        return Ok(());
    }
    if amount.units() % i64::from(GPU_UNIT) != 0 {
        return Err(format!(
            "{amount} is neither a part of one unit nor whole units: ask for less than 1, or for a whole number"
        ));
    }
    check_unit_total(amount)
}

/// Returns the number of units that `amount` takes, and the part of each.
fn shape(amount: Amount) -> (usize, u16) {
    let units = amount.units();
    let unit = i64::from(GPU_UNIT);
    if units < unit {
        return (usize::from(units > 0), units as u16);
    }
    assert!(units % unit == 0, "{amount} units were asked: the edge refuses parts above one");
    ((units / unit) as usize, GPU_UNIT)
}

/// Returns the `count` units that are overcommitted least when something is taken from each.
///
/// These are the units with the most free capacity, then those that the node has, then those with the
/// smallest shortfall, then the lowest. `state` returns a unit's free part, whether the node has it, and its
/// shortfall.
pub(crate) fn least_overcommitted(
    count: usize,
    instances: u8,
    state: impl Fn(u8) -> (u16, bool, u32),
) -> u64 {
    let mut order: Vec<u8> = (0..instances).collect();
    order.sort_by_key(|&i| {
        let (free, there, short) = state(i);
        (Reverse(free), !there, short, i)
    });
    order.into_iter().take(count).fold(0, |mask, i| mask | 1 << i)
}

/// The free part and the shortfall of one unit, in 1/10,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unit {
    free: u16,
    short: u32,
}

/// The units of one kind on one node.
///
/// Units that the node no longer has stay, with nothing free, while an allocation holds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitBooks {
    count: u8,
    units: Vec<Unit>,
}

impl UnitBooks {
    /// Creates books with `total` units, wholly free.
    ///
    /// # Panics
    /// When [`check_unit_total`] would reject `total`.
    #[must_use]
    pub fn with_total(total: Amount) -> Self {
        let (count, _) = shape(total);
        assert!(count <= UNIT_INSTANCES_MAX && check_unit_total(total).is_ok(), "{total} units on a node");
        Self { count: count as u8, units: vec![Unit { free: GPU_UNIT, short: 0 }; count] }
    }

    /// Creates books of units with these free parts, in 1/10,000.
    pub(crate) fn of_parts(free: &[u16]) -> Self {
        let units: Vec<Unit> = free.iter().map(|&free| Unit { free, short: 0 }).collect();
        Self { count: units.len() as u8, units }
    }

    /// Returns whether all of `assignment` is free.
    pub(crate) fn covers(&self, assignment: UnitAssignment) -> bool {
        assignment.instances().all(|id| self.unit(id).free >= assignment.part)
    }

    /// Takes as much of `assignment` as is free.
    pub(crate) fn take_up_to(&mut self, assignment: UnitAssignment) {
        for id in assignment.instances() {
            if let Some(unit) = self.units.get_mut(usize::from(id)) {
                unit.free = unit.free.saturating_sub(assignment.part);
            }
        }
    }

    /// Returns the free part of one unit, in 1/10,000.
    pub(crate) fn free_of(&self, id: u8) -> u16 {
        self.unit(id).free
    }

    /// Sets the free part of one unit, in 1/10,000.
    pub(crate) fn set_free(&mut self, id: u8, part: u16) {
        assert!(part <= GPU_UNIT, "unit {id} would have {part}/10000 free");
        self.unit_mut(id).free = part;
    }

    fn unit(&self, id: u8) -> Unit {
        self.units.get(usize::from(id)).copied().unwrap_or_default()
    }

    fn unit_mut(&mut self, id: u8) -> &mut Unit {
        let at = usize::from(id);
        if self.units.len() <= at {
            self.units.resize(at + 1, Unit::default());
        }
        &mut self.units[at]
    }

    /// Returns the number of units that the node has.
    #[must_use]
    pub fn count(&self) -> u8 {
        self.count
    }

    /// Returns the id, the free part and the shortfall, in 1/10,000, of every unit that the node has or that
    /// is in use.
    pub fn iter(&self) -> impl Iterator<Item = (u8, u16, u32)> {
        (0u8..).zip(&self.units).map(|(id, unit)| (id, unit.free, unit.short))
    }

    /// Returns the sum of the free parts of all units.
    #[must_use]
    pub fn free(&self) -> Amount {
        Amount::from_parts(self.units.iter().map(|unit| u32::from(unit.free)))
    }

    /// Returns the sum of the shortfalls of all units.
    #[must_use]
    pub fn short(&self) -> Amount {
        Amount::from_parts(self.units.iter().map(|unit| unit.short))
    }

    /// Returns the room that a request for `amount` is compared with.
    ///
    /// This is the largest free part for a part of one unit, and the wholly free units for whole ones.
    #[must_use]
    pub fn room_for(&self, amount: Amount) -> Amount {
        if amount.units() < i64::from(GPU_UNIT) {
            Amount::from_parts(self.units.iter().map(|unit| u32::from(unit.free)).max().into_iter())
        } else {
            let whole = self.units.iter().filter(|unit| unit.free == GPU_UNIT).count();
            Amount::whole(whole as u32)
        }
    }

    /// Returns the units that `amount` takes.
    ///
    /// A part goes to the unit with the smallest sufficient free part. Whole units are the wholly free ones
    /// of lowest id. Ties go to the lowest id.
    #[must_use]
    pub fn choose(&self, amount: Amount) -> Option<UnitAssignment> {
        let (count, part) = shape(amount);
        let mut mask = 0u64;
        if part < GPU_UNIT {
            let fitting = self.iter().filter(|&(_, free, _)| free >= part);
            mask |= 1 << fitting.min_by_key(|&(id, free, _)| (free, id))?.0;
        } else {
            for (id, free, _) in self.iter() {
                if (mask.count_ones() as usize) < count && free == GPU_UNIT {
                    mask |= 1 << id;
                }
            }
        }
        (mask.count_ones() as usize == count).then_some(UnitAssignment { mask, part })
    }

    /// Returns the units that `amount` takes, even if they are not free.
    ///
    /// These are the units of [`choose`](Self::choose), or else those that are overcommitted least.
    #[must_use]
    pub fn choose_anyway(&self, amount: Amount) -> UnitAssignment {
        self.choose(amount).unwrap_or_else(|| {
            let (count, part) = shape(amount);
            let state = |id: u8| (self.unit(id).free, id < self.count, self.unit(id).short);
            UnitAssignment { mask: least_overcommitted(count, UNIT_INSTANCES_MAX as u8, state), part }
        })
    }

    /// Returns whether [`take_held`](Self::take_held) can add to the shortfall of these units.
    #[must_use]
    pub fn can_take_held(&self, assignment: UnitAssignment) -> bool {
        assignment.instances().all(|id| self.unit(id).short < SHORTFALL_MAX)
    }

    /// Takes free capacity.
    ///
    /// # Panics
    /// When a unit has less free than `assignment` takes. The caller and the books disagree then.
    pub fn take(&mut self, assignment: UnitAssignment) {
        for id in assignment.instances() {
            let unit = self.unit_mut(id);
            assert!(
                unit.free >= assignment.part,
                "unit {id} has {}/10000 free, {} taken",
                unit.free,
                assignment.part
            );
            unit.free -= assignment.part;
        }
    }

    /// Takes what an allocation holds, even beyond capacity.
    pub fn take_held(&mut self, assignment: UnitAssignment) {
        for id in assignment.instances() {
            let unit = self.unit_mut(id);
            let covered = assignment.part.min(unit.free);
            unit.free -= covered;
            unit.short += u32::from(assignment.part - covered);
        }
    }

    /// Returns capacity. A unit's shortfall is reduced first.
    ///
    /// # Panics
    /// When a unit would have more free than its capacity.
    pub fn give(&mut self, assignment: UnitAssignment) {
        for id in assignment.instances() {
            let there = id < self.count;
            let unit = self.unit_mut(id);
            let paid = u32::from(assignment.part).min(unit.short);
            unit.short -= paid;
            unit.free += assignment.part - paid as u16;
            assert!(unit.free <= if there { GPU_UNIT } else { 0 }, "unit {id} has more free than it has");
        }
        self.trim();
    }

    /// Sets the number of units of the node to `total`. Units in use stay in use.
    ///
    /// # Panics
    /// The same as for [`with_total`](Self::with_total).
    pub fn resize(&mut self, total: Amount) {
        let fresh = Self::with_total(total);
        let last = self.units.len().max(usize::from(fresh.count)) as u8;
        for id in 0..last {
            let had = if id < self.count { u32::from(GPU_UNIT) } else { 0 };
            let has = if id < fresh.count { u32::from(GPU_UNIT) } else { 0 };
            let unit = self.unit_mut(id);
            let used = had + unit.short - u32::from(unit.free);
            *unit = Unit { free: has.saturating_sub(used) as u16, short: used.saturating_sub(has) };
        }
        self.count = fresh.count;
        self.trim();
    }

    /// Drops units that the node does not have and that are not in use.
    fn trim(&mut self) {
        while self.units.len() > usize::from(self.count) && self.units.last() == Some(&Unit::default()) {
            self.units.pop();
        }
    }
}

const _: () = assert!(UNIT_INSTANCES_MAX <= 64, "a mask of units is a u64");

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        text.parse().unwrap()
    }

    fn taken(books: &mut UnitBooks, text: &str) -> Vec<u8> {
        let assignment = books.choose(amount(text)).unwrap();
        books.take(assignment);
        assignment.instances().collect()
    }

    #[test]
    fn parts_take_the_best_fitting_unit_and_whole_requests_free_ones() {
        let mut books = UnitBooks::with_total(amount("3"));
        assert_eq!(taken(&mut books, "0.6"), [0]);
        assert_eq!(taken(&mut books, "0.7"), [1]);
        // 0.3 fits unit 1 exactly. Unit 0 has 0.4.
        assert_eq!(taken(&mut books, "0.3"), [1]);
        assert_eq!(books.choose(amount("2")), None, "0.4 and 1 are not 2");
        assert_eq!(books.choose(amount("0.5")).unwrap().instances().collect::<Vec<_>>(), [2]);
        assert_eq!(taken(&mut books, "1"), [2]);
        assert_eq!((books.free(), books.room_for(amount("0.1"))), (amount("0.4"), amount("0.4")));
        assert_eq!(books.room_for(amount("1")), Amount::ZERO);
    }

    #[test]
    fn what_is_given_back_merges() {
        let mut books = UnitBooks::with_total(amount("1"));
        let a = books.choose(amount("0.4")).unwrap();
        let b = UnitAssignment { mask: 1, part: 6000 };
        books.take(a);
        books.take(b);
        books.give(a);
        books.give(b);
        assert_eq!(books, UnitBooks::with_total(amount("1")));
    }

    #[test]
    fn a_shortfall_is_paid_back_per_unit_and_units_that_are_gone_are_forgotten() {
        let mut books = UnitBooks::with_total(amount("2"));
        let both = books.choose(amount("2")).unwrap();
        books.take(both);
        books.resize(amount("1"));
        assert_eq!((books.free(), books.short()), (Amount::ZERO, amount("1")));
        let more = books.choose_anyway(amount("0.5"));
        assert_eq!(more.mask, 0b01, "a unit that is there, although it is in use");
        books.take_held(more);
        books.give(both);
        assert_eq!(books.iter().collect::<Vec<_>>(), [(0, 5000, 0)]);
        books.give(more);
        assert_eq!(books, UnitBooks::with_total(amount("1")));
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        assert!(check_unit_request(amount("0.5")).is_ok() && check_unit_request(amount("64")).is_ok());
        assert!(check_unit_request(amount("1.5")).unwrap_err().contains("whole number"));
        assert!(check_unit_request(amount("65")).unwrap_err().contains("at most 64"));
        assert!(check_unit_total(amount("0.5")).unwrap_err().contains("not whole"));
    }
}
