//! Priority classes: names of priorities that the service keeps.

use wharf_core::limits::{CLASS_DESCRIPTION_BYTES_MAX, CLASS_NAME_BYTES_MAX, PRIORITY_CLASSES_MAX};

use super::{FRAME_BYTES_MAX, Fault, ReasonCode};

/// Maximum number of priority classes on one page of a list: as many as there may be.
pub const PRIORITY_CLASSES_PER_MESSAGE_MAX: usize = PRIORITY_CLASSES_MAX;

bodies! {
    /// A priority class.
    pub struct PriorityClassBody {
        /// Its name, which is unique.
        pub name: String [CLASS_NAME_BYTES_MAX],
        /// The priority of jobs and task groups that name it.
        pub value: i32,
        /// Whether jobs of it may preempt others. If not, none does, whatever it says itself.
        pub preempts: bool = true,
        /// Whether jobs that give neither a class nor a priority are of this class. At most one class is.
        pub is_default: bool,
        /// What it is for.
        pub description: String [CLASS_DESCRIPTION_BYTES_MAX],
    }

    /// Makes a priority class, or changes the one of this name. Jobs that were submitted keep their priorities.
    pub struct SetPriorityClassRequest {
        /// What the class is to be.
        pub class: PriorityClassBody,
    }

    /// Removes a priority class. Jobs that were submitted keep their priorities.
    pub struct RemovePriorityClassRequest {
        /// The name of the class.
        pub name: String [CLASS_NAME_BYTES_MAX],
    }

    /// Confirms a change of a priority class, or carries the fault why not.
    pub struct PriorityClassReply {
        /// `done` or the fault's reason.
        pub reason: ReasonCode,
        /// The fault, if any.
        pub fault: Option<Fault>,
    }

    /// Asks for a page of priority classes, in order of name.
    pub struct ListPriorityClassesRequest {
        /// Returns the classes after the one of this name. Empty: starts with the first.
        pub after: String [CLASS_NAME_BYTES_MAX],
        /// Maximum number of classes to return, at most 1,000. 0 means a full page.
        pub limit: u32,
    }

    /// A page of priority classes.
    pub struct ListPriorityClassesReply {
        /// The classes in order of name.
        pub classes: Vec<PriorityClassBody> [PRIORITY_CLASSES_PER_MESSAGE_MAX],
        /// There may be more classes after the last one.
        pub more: bool,
    }
}

/// Bytes of a class at most: two texts, and numbers at their longest encoding.
const CLASS_BYTES: usize = CLASS_NAME_BYTES_MAX + CLASS_DESCRIPTION_BYTES_MAX + 6 + 5 + 2;
// The longest page fits a frame.
const _: () = assert!(PRIORITY_CLASSES_PER_MESSAGE_MAX * CLASS_BYTES + 128 <= FRAME_BYTES_MAX as usize);
