//! How answers about victims are combined.

use crate::jobs::TaskId;

/// Returns the victims in all answers, or `None` if there is no answer.
pub(super) fn agree(answers: impl Iterator<Item = Vec<TaskId>>) -> Option<Vec<TaskId>> {
    answers.reduce(|mut agreed, answer| {
        agreed.retain(|victim| answer.contains(victim));
        agreed
    })
}

/// Combines as Volcano does: an empty answer ends the tier without a result, and after an empty intersection the next
/// answer counts alone.
pub(super) fn agree_as_volcano(answers: impl Iterator<Item = Vec<TaskId>>) -> Option<Vec<TaskId>> {
    let mut agreed: Option<Vec<TaskId>> = None;
    for answer in answers {
        if answer.is_empty() {
            return None;
        }
        agreed = match agreed {
            None => Some(answer),
            Some(mut before) => {
                before.retain(|victim| answer.contains(victim));
                (!before.is_empty()).then_some(before)
            }
        };
    }
    agreed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::JobId;

    fn tasks(of: &[u32]) -> Vec<TaskId> {
        of.iter().map(|&index| TaskId { job: JobId(1), index }).collect()
    }

    #[test]
    fn strictly_an_empty_answer_is_a_veto() {
        let agreed = |answers: &[&[u32]]| agree(answers.iter().map(|answer| tasks(answer)));
        assert_eq!(agreed(&[]), None);
        assert_eq!(agreed(&[&[1, 2, 3], &[2, 3], &[3, 4]]), Some(tasks(&[3])));
        assert_eq!(agreed(&[&[1], &[2], &[3]]), Some(Vec::new()));
        assert_eq!(agreed(&[&[], &[2]]), Some(Vec::new()));
    }

    #[test]
    fn as_in_volcano_an_empty_answer_falls_through() {
        let agreed = |answers: &[&[u32]]| agree_as_volcano(answers.iter().map(|answer| tasks(answer)));
        assert_eq!(agreed(&[&[1, 2, 3], &[2, 3]]), Some(tasks(&[2, 3])));
        assert_eq!(agreed(&[&[1, 2], &[]]), None);
        assert_eq!(agreed(&[&[1], &[2], &[3]]), Some(tasks(&[3])), "the empty intersection is forgotten");
    }
}
