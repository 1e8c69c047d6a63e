//! The changes since the last view, by place.

/// Flags for what changed at a place. The owner of the list defines the bits.
pub(crate) type Changes = u8;

/// The changed places, each with its flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dirty {
    changes: Vec<Changes>,
    places: Vec<u32>,
}

impl Dirty {
    /// Records a change at `place`.
    #[inline]
    pub(crate) fn note(&mut self, place: u32, what: Changes) {
        let at = place as usize;
        if at >= self.changes.len() {
            self.changes.resize((at + 1).next_power_of_two(), 0);
        }
        let changes = &mut self.changes[at];
        if *changes == 0 {
            self.places.push(place);
        }
        *changes |= what;
    }

    /// Drops the changes at `place`.
    pub(crate) fn forget(&mut self, place: u32) {
        if let Some(changes) = self.changes.get_mut(place as usize) {
            *changes = 0;
        }
        if self.places.len() > 2 * self.changes.len() {
            let changes = &self.changes;
            self.places.retain(|&place| changes[place as usize] != 0);
            self.places.sort_unstable();
            self.places.dedup();
        }
    }

    /// Returns the changes at `place`.
    pub(crate) fn at(&self, place: u32) -> Changes {
        self.changes.get(place as usize).copied().unwrap_or(0)
    }

    /// Returns the number of noted places, including forgotten ones.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Takes a place with its changes, the newest first. A forgotten place has none.
    pub(crate) fn pop(&mut self) -> Option<(u32, Changes)> {
        let place = self.places.pop()?;
        Some((place, std::mem::take(&mut self.changes[place as usize])))
    }

    /// Replaces `into` by the places with any of the changes `what`, ascending.
    pub(crate) fn list(&mut self, what: Changes, into: &mut Vec<u32>) {
        into.clear();
        into.extend(self.places.iter().filter(|&&place| self.changes[place as usize] & what != 0));
        into.sort_unstable();
    }

    /// Drops all changes.
    pub(crate) fn clear(&mut self) {
        for place in self.places.drain(..) {
            self.changes[place as usize] = 0;
        }
    }

    /// Returns the size of the lists in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        crate::memory::of_vec(&self.changes) + crate::memory::of_vec(&self.places)
    }
}
