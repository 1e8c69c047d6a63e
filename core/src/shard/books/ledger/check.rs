//! Invariants of the ledger.

use super::{Ledger, NO_ALLOCATION, PAGE, Record, VACANT, place_of};
use crate::broken::{Broken, broken};

impl Ledger {
    /// Checks that every record is found by its id, and every vacant place is listed unless all its ids are granted.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        let records = || (0..self.places).zip(self.pages.iter().flat_map(|page| page.iter()));
        let mut lost = records().filter(|&(at, r)| r.node != VACANT && self.find(r.id) != Some(at));
        if let Some((_, record)) = lost.next() {
            return Err(broken!("allocation {} is not found by its id", record.id));
        }
        let is_usable = |record: &Record| record.node == VACANT && record.granted != u32::MAX;
        let record = |at: u32| &self.pages[at as usize / PAGE][at as usize % PAGE];
        let is_place = |&at: &u32| at != NO_ALLOCATION;
        let listed = std::iter::successors(Some(self.vacant).filter(is_place), |&at| {
            Some(record(at).next).filter(is_place)
        });
        let listed = listed.take(self.places() as usize + 1).filter(|&at| is_usable(record(at))).count();
        let live = records().filter(|(_, record)| record.node != VACANT).count();
        let by_id = records().filter(|&(at, r)| r.node != VACANT && place_of(r.id) != at).count();
        let usable = records().filter(|(_, record)| is_usable(record)).count();
        if [live, by_id, usable] != [self.live, self.by_id.len(), listed] {
            return Err(broken!(
                "{live} records, {by_id} by id, {usable} vacant, not {} and {} and {listed}",
                self.live,
                self.by_id.len()
            ));
        }
        Ok(())
    }
}
