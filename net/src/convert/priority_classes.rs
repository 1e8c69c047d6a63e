//! Conversion between wire types and engine types: priority classes, and the priorities that jobs ask for.

use std::sync::Arc;

use wharf_core::jobs::{AskedPriorities, AskedPriority, ClassError, PriorityClass};

use super::{check_name, invalid};
use crate::protocol::{Fault, JobBody, ListPriorityClassesReply, PriorityClassBody, Reason};

/// Converts a priority class to the engine's form.
///
/// # Errors
/// Returns a fault that names the field.
pub fn priority_class(wire: PriorityClassBody) -> Result<PriorityClass, Fault> {
    let PriorityClassBody { name, value, preempts, is_default, description } = wire;
    check_name("name", &name)?;
    if description.chars().any(char::is_control) {
        return Err(invalid("description", "the description has control characters: leave them out"));
    }
    Ok(PriorityClass { name: name.into(), value, preempts, is_default, description: description.into() })
}

/// Converts a priority class to the wire.
#[must_use]
pub fn priority_class_body(class: &PriorityClass) -> PriorityClassBody {
    PriorityClassBody {
        name: class.name.to_string(),
        value: class.value,
        preempts: class.preempts,
        is_default: class.is_default,
        description: class.description.to_string(),
    }
}

/// Reads the name of a class, which may be empty.
pub(super) fn class_name(field: &str, name: &str) -> Result<Option<Arc<str>>, Fault> {
    if name.is_empty() {
        return Ok(None);
    }
    check_name(field, name)?;
    Ok(Some(name.into()))
}

/// Returns the priorities that a job asks for.
///
/// # Errors
/// Returns a fault that names the field.
pub fn asked_priorities(job: &JobBody) -> Result<AskedPriorities, Fault> {
    let class = class_name("priority_class", &job.priority_class)?;
    let mut tasks = Vec::with_capacity(job.tasks.len());
    for (at, group) in job.tasks.iter().enumerate() {
        let class = class_name(&format!("tasks[{at}].priority_class"), &group.priority_class)?;
        tasks.push(AskedPriority { number: group.priority, class });
    }
    Ok(AskedPriorities { job: AskedPriority { number: job.priority, class }, tasks })
}

/// Builds a page of at most `limit` classes. `classes` has one more, if there are more.
pub(super) fn classes_page(classes: &[PriorityClass], limit: usize) -> ListPriorityClassesReply {
    ListPriorityClassesReply {
        classes: classes.iter().take(limit).map(priority_class_body).collect(),
        more: classes.len() > limit,
    }
}

/// Returns the reason and the field of a refused class.
pub(super) fn class_error(error: &ClassError) -> (Reason, &'static str) {
    match error {
        ClassError::Unknown(_) => (Reason::UnknownPriorityClass, "name"),
        ClassError::SecondDefault { .. } => (Reason::InvalidField, "class.is_default"),
        ClassError::TooMany(_) => (Reason::LimitExceeded, "class"),
    }
}
