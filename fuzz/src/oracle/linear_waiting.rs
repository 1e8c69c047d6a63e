//! The part of the oracle for waiting requests. A parked request is tried like a placement.

use std::mem::discriminant;

use wharf_core::shard::{Outcome, Park, Refused, WaitToken};

use super::linear_shard::{LinearShard, differs};

impl LinearShard {
    pub(super) fn compare_park(&mut self, park: &Park, outcome: &Outcome) -> Result<(), String> {
        match outcome {
            Outcome::Place(Err(Refused { refusal, parked: true })) => {
                self.parked.insert(park.token, park.request.clone());
                let refused = Refused { refusal: refusal.clone(), parked: false };
                self.compare_place(&park.request, &Outcome::Place(Err(refused)))
            }
            Outcome::Place(Err(_)) => differs(outcome, "parked"),
            other => self.compare_place(&park.request, other),
        }
    }

    pub(super) fn compare_retry(&mut self, token: WaitToken, outcome: &Outcome) -> Result<(), String> {
        let Some(request) = self.parked.get(&token).cloned() else {
            return compare_bare(outcome, &Outcome::NotParked);
        };
        if matches!(outcome, Outcome::Place(Ok(_))) {
            self.parked.remove(&token);
        }
        self.retrying = true;
        let compared = self.compare_place(&request, outcome);
        self.retrying = false;
        compared
    }

    pub(super) fn compare_unpark(&mut self, token: WaitToken, outcome: &Outcome) -> Result<(), String> {
        if self.watched.remove(&token) {
            return compare_bare(outcome, &Outcome::Unparked);
        }
        match (self.parked.remove(&token), outcome) {
            (Some(_), other) => compare_bare(other, &Outcome::Unparked),
            (None, other) => compare_bare(other, &Outcome::NotParked),
        }
    }
}

/// Compares an outcome that has no content.
pub(super) fn compare_bare(outcome: &Outcome, expected: &Outcome) -> Result<(), String> {
    if discriminant(outcome) == discriminant(expected) { Ok(()) } else { differs(outcome, expected) }
}
