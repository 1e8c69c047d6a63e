//! The part of the oracle for waiting requests. A parked request is tried like a placement.

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
        let Some(request) = self.parked.get(&token).cloned() else { return compare_not_parked(outcome) };
        if matches!(outcome, Outcome::Place(Ok(_))) {
            self.parked.remove(&token);
        }
        self.retrying = true;
        let compared = self.compare_place(&request, outcome);
        self.retrying = false;
        compared
    }

    pub(super) fn compare_unpark(&mut self, token: WaitToken, outcome: &Outcome) -> Result<(), String> {
        match (self.parked.remove(&token), outcome) {
            (Some(_), Outcome::Unparked) => Ok(()),
            (Some(request), other) => differs(other, request),
            (None, other) => compare_not_parked(other),
        }
    }
}

fn compare_not_parked(outcome: &Outcome) -> Result<(), String> {
    match outcome {
        Outcome::NotParked => Ok(()),
        other => differs(other, "not parked"),
    }
}
