//! What changed since the last look.

/// More changes than this are not listed: the next look must be at everything.
const LISTED_MAX: usize = 1 << 16;

/// The values that changed since the last call of [`take`](Self::take). Costs nothing if nobody ever calls it.
#[derive(Debug)]
pub(crate) struct Touched<T> {
    /// With repetitions. `None`: anything may have changed.
    listed: Option<Vec<T>>,
}

impl<T> Default for Touched<T> {
    fn default() -> Self {
        Self { listed: None }
    }
}

impl<T: PartialEq> Touched<T> {
    /// Notes that a value changed.
    pub(crate) fn note(&mut self, value: T) {
        let Some(listed) = &mut self.listed else { return };
        if listed.last() == Some(&value) {
            return;
        }
        if listed.len() < LISTED_MAX {
            listed.push(value);
        } else {
            self.listed = None;
        }
    }

    /// Notes that anything may have changed.
    pub(crate) fn note_all(&mut self) {
        self.listed = None;
    }

    /// Returns what changed since the last call. `None`: anything may have.
    pub(crate) fn take(&mut self) -> Option<Vec<T>> {
        self.listed.replace(Vec::new())
    }

    /// Returns a mark for [`forget_since`](Self::forget_since).
    pub(crate) fn mark(&self) -> usize {
        self.listed.as_ref().map_or(0, Vec::len)
    }

    /// Forgets the changes since a mark, because they were undone.
    pub(crate) fn forget_since(&mut self, mark: usize) {
        if let Some(listed) = &mut self.listed {
            listed.truncate(mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_listed_from_the_first_look_on() {
        let mut touched = Touched::default();
        touched.note(1);
        assert_eq!(touched.take(), None);
        touched.note(2);
        touched.note(2);
        touched.note(3);
        assert_eq!(touched.take(), Some(vec![2, 3]));
        assert_eq!(touched.take(), Some(Vec::new()));
        touched.note_all();
        touched.note(4);
        assert_eq!(touched.take(), None);
    }

    #[test]
    fn what_was_undone_is_forgotten() {
        let mut touched = Touched::default();
        let _ = touched.take();
        touched.note(1);
        let mark = touched.mark();
        touched.note(1);
        touched.note(2);
        touched.forget_since(mark);
        assert_eq!(touched.take(), Some(vec![1]));
    }

    #[test]
    fn a_list_is_bounded() {
        let mut touched = Touched::default();
        let _ = touched.take();
        (0..LISTED_MAX).for_each(|value| touched.note(value));
        assert_eq!(touched.mark(), LISTED_MAX);
        touched.note(LISTED_MAX);
        touched.forget_since(3);
        assert_eq!(touched.take(), None);
    }
}
