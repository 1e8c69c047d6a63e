//! A flipped bit on the disk: the start refuses and names the place, or it has the books that it must have.
//!
//! The last commit of a database is an exception. If one of its pages is not as it was written, the commit cannot be told
//! from one that was never synced whole. The start then begins with the commit before, and says that it is cut.

use wharf_core::state::StoreState;

use super::crash::a_crash_leaves_no_half;
use super::outcomes::{Moment, Replies};
use super::{Verdict, ensure};
use crate::disk::Flip;

/// What a start after a crash must come to.
#[derive(Clone)]
pub struct Expected<'a> {
    /// The books that it may have. The first are those of the units that are durable.
    pub books: Vec<StoreState>,
    /// The replies that may have left.
    pub replies: &'a Replies,
    /// The moment of the crash.
    pub moment: Moment,
}

impl Expected<'_> {
    /// Checks what a start read.
    ///
    /// # Errors
    /// Returns the first difference from each of the books, or a reply that it does not lead to.
    pub fn check(&self, state: &StoreState) -> Verdict {
        a_crash_leaves_no_half(state, &self.books)?;
        self.replies.a_start_keeps_the_outcomes(&state.sessions, self.moment)
    }
}

/// What a start came to.
#[derive(Clone, Debug)]
pub enum CameTo {
    /// It refused, with this message.
    Refused(String),
    /// It read this state.
    Read {
        /// The state.
        state: Box<StoreState>,
        /// The start says that the last commit was not whole.
        is_cut: bool,
    },
}

/// What became of a flipped bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// The start refused.
    Refused,
    /// The start begins before the last commit, and says so.
    Cut,
    /// Nothing was read from it.
    Unread,
}

/// What a start made of a flipped bit, and what is wrong with that.
pub struct Flipped {
    /// What became of the bit.
    pub became: Became,
    /// The books that are wrong, or the message that does not name the place.
    pub verdict: Verdict,
}

/// Checks what a start made of a flipped bit. `before` is what it must come to if the last commit was not there.
#[must_use]
pub fn a_flipped_bit_is_noticed(
    flip: &Flip,
    came_to: &CameTo,
    expected: &Expected<'_>,
    before: &Expected<'_>,
) -> Flipped {
    let (state, is_cut) = match came_to {
        CameTo::Refused(message) => {
            let names_it = message.contains(&flip.file) || message.contains("of the journal is damaged");
            let verdict = ensure(names_it, || {
                format!("with {flip}, a start refuses and does not say where: {message}")
            });
            return Flipped { became: Became::Refused, verdict };
        }
        CameTo::Read { state, is_cut } => (state, *is_cut),
    };
    if expected.check(state).is_ok() {
        return Flipped { became: Became::Unread, verdict: Ok(()) };
    }
    let allowed = if is_cut { before } else { expected };
    let verdict = allowed.check(state).map_err(|found| format!("with {flip}, cut: {is_cut}: {found}"));
    Flipped { became: Became::Cut, verdict }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    #[test]
    pub fn a_flipped_bit_that_nobody_notices() {
        let older = StoreState::create(1);
        let mut newer = older.clone();
        newer.registrar.resources.push("tape".to_owned());
        let replies = Replies::default();
        let of = |books: &[&StoreState]| Expected {
            books: books.iter().map(|&books| books.clone()).collect(),
            replies: &replies,
            moment: Moment { durable: 1, events: 1 },
        };
        let expected = of(&[&newer]);
        let before = of(&[&older, &newer]);
        let flip = Flip { file: "store.redb".to_owned(), offset: 1, bit: 1 };
        let check = |came_to: CameTo| {
            let Flipped { became, verdict } = a_flipped_bit_is_noticed(&flip, &came_to, &expected, &before);
            verdict.map(|()| became)
        };
        let read = |state: &StoreState, is_cut| CameTo::Read { state: Box::new(state.clone()), is_cut };
        let refused = |message: &str| CameTo::Refused(message.to_owned());
        assert_eq!(check(refused("disk/store.redb: is damaged")), Ok(Became::Refused));
        assert_eq!(check(refused("append 3 of the journal is damaged")), Ok(Became::Refused));
        assert!(check(refused("no")).is_err(), "the place is not named");
        assert_eq!(check(read(&newer, false)), Ok(Became::Unread));
        assert_eq!(check(read(&older, true)), Ok(Became::Cut));
        assert!(check(read(&older, false)).is_err(), "wrong books, and nobody says so");
        let mut other = newer.clone();
        other.registrar.resources.push("drum".to_owned());
        assert!(check(read(&other, true)).is_err(), "books that were never there");
    }
}
