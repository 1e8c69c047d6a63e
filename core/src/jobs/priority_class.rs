//! Priority classes: names of priorities (Kubernetes' PriorityClass).
//!
//! As in Kubernetes, a class becomes a number when a job is submitted. A class that is changed or removed later changes no job.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::{JobError, JobSpec, Jobs};
use crate::limits::PRIORITY_CLASSES_MAX;

/// A priority class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityClass {
    /// Its name, which is unique. At most [`CLASS_NAME_BYTES_MAX`](crate::limits::CLASS_NAME_BYTES_MAX) bytes.
    pub name: Arc<str>,
    /// The priority of those that name it.
    pub value: i32,
    /// Whether jobs of it may preempt others (`preemptionPolicy`). If not, no job of it does, whatever it says itself.
    pub preempts: bool,
    /// Whether jobs that give neither a class nor a priority are of this class (`globalDefault`). At most one class is.
    pub is_default: bool,
    /// What it is for. At most [`CLASS_DESCRIPTION_BYTES_MAX`](crate::limits::CLASS_DESCRIPTION_BYTES_MAX) bytes.
    pub description: Arc<str>,
}

impl PriorityClass {
    /// Creates a class whose jobs may preempt others, and which is not the default.
    #[must_use]
    pub fn new(name: &str, value: i32) -> Self {
        Self { name: name.into(), value, preempts: true, is_default: false, description: "".into() }
    }
}

/// The priority that a job, or a task group of it, asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedPriority {
    /// The priority.
    pub number: Option<i32>,
    /// The name of a class.
    pub class: Option<Arc<str>>,
}

/// The priorities that a job asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedPriorities {
    /// Of the job. Without number and class: those of the default class, or 0.
    pub job: AskedPriority,
    /// Of its task groups, in their order. Without number and class, and where there is none: that of the job.
    pub tasks: Vec<AskedPriority>,
}

/// The reason why a priority class is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// There is no class of this name.
    #[error("there is no priority class `{0}`: list them to see which there are")]
    Unknown(Arc<str>),
    /// Another class is the default.
    #[error(
        "priority class `{class}` would be a second default: `{default}` is it, so set that one without `default` first"
    )]
    SecondDefault {
        /// The class.
        class: Arc<str>,
        /// The class that is the default.
        default: Arc<str>,
    },
    /// There are as many classes as there may be.
    #[error("there are {0} priority classes, which is all there may be: remove some")]
    TooMany(usize),
}

impl Jobs {
    /// Makes a priority class, or changes the one of this name.
    ///
    /// # Errors
    /// The reason why it is refused. Nothing has changed.
    pub fn set_priority_class(&mut self, class: PriorityClass) -> Result<(), ClassError> {
        let other = self.default_class().filter(|default| class.is_default && default.name != class.name);
        if let Some(default) = other {
            return Err(ClassError::SecondDefault { class: class.name, default: Arc::clone(&default.name) });
        }
        let classes = self.priority_classes.len();
        if classes >= PRIORITY_CLASSES_MAX && !self.priority_classes.contains_key(&class.name) {
            return Err(ClassError::TooMany(classes));
        }
        self.note_class(&class.name);
        self.priority_classes.insert(Arc::clone(&class.name), class);
        Ok(())
    }

    /// Removes a priority class. Jobs of it keep their priorities.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove_priority_class(&mut self, name: &Arc<str>) -> Result<(), ClassError> {
        self.priority_classes.remove(name).ok_or_else(|| ClassError::Unknown(Arc::clone(name)))?;
        self.note_class(name);
        Ok(())
    }

    /// Returns the priority class of a name.
    #[must_use]
    pub fn priority_class(&self, name: &str) -> Option<&PriorityClass> {
        self.priority_classes.get(name)
    }

    /// Returns the priority classes after one, by name.
    pub fn classes_after(&self, after: Option<&str>) -> impl Iterator<Item = &PriorityClass> {
        let after = after.map_or(Unbounded, Excluded);
        self.priority_classes.range::<str, _>((after, Unbounded)).map(|(_, class)| class)
    }

    fn default_class(&self) -> Option<&PriorityClass> {
        self.priority_classes.values().find(|class| class.is_default)
    }

    /// Gives a job and its task groups the priorities that are asked for.
    ///
    /// # Errors
    /// A class is unknown, or its priority is another one than what is given next to it.
    pub fn resolve_priorities(&self, spec: &mut JobSpec, asked: &AskedPriorities) -> Result<(), JobError> {
        let of_job = self.class_of(&spec.name, None, &asked.job)?;
        let class = of_job.or_else(|| self.default_class().filter(|_| asked.job.number.is_none()));
        spec.priority = class.map(|class| class.value).or(asked.job.number).unwrap_or(0);
        spec.preempts &= class.is_none_or(|class| class.preempts);
        spec.priority_class = class.map(|class| Arc::clone(&class.name));
        let none = AskedPriority::default();
        let asked = asked.tasks.iter().chain(std::iter::repeat(&none));
        for ((number, group), asked) in (0..).zip(&mut spec.tasks).zip(asked) {
            let class = self.class_of(&spec.name, Some(number), asked)?;
            group.priority = class.map(|class| class.value).or(asked.number).unwrap_or(spec.priority);
        }
        Ok(())
    }

    /// Returns the class that a job or a task group of it names.
    fn class_of(
        &self,
        job: &Arc<str>,
        group: Option<u32>,
        asked: &AskedPriority,
    ) -> Result<Option<&PriorityClass>, JobError> {
        let Some(name) = &asked.class else { return Ok(None) };
        let Some(class) = self.priority_class(name) else {
            return Err(JobError::UnknownClass { job: Arc::clone(job), group, class: Arc::clone(name) });
        };
        if let Some(priority) = asked.number.filter(|&priority| priority != class.value) {
            let job = Arc::clone(job);
            let name = Arc::clone(name);
            return Err(JobError::OtherPriority { job, group, class: name, value: class.value, priority });
        }
        Ok(Some(class))
    }
}

/// The priority classes by name.
pub(super) type PriorityClasses = BTreeMap<Arc<str>, PriorityClass>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::TaskGroup;
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::Demand;

    fn asked(number: Option<i32>, class: Option<&str>) -> AskedPriority {
        AskedPriority { number, class: class.map(Into::into) }
    }

    fn with_classes() -> Jobs {
        let mut jobs = Jobs::new();
        jobs.set_priority_class(PriorityClass::new("high", 1_000)).unwrap();
        jobs.set_priority_class(PriorityClass { preempts: false, ..PriorityClass::new("patient", 10) })
            .unwrap();
        jobs
    }

    fn default(name: &str, value: i32) -> PriorityClass {
        PriorityClass { is_default: true, ..PriorityClass::new(name, value) }
    }

    fn spec() -> JobSpec {
        let request = PlacementRequest::new(Demand::default(), Policy::BestFit);
        JobSpec::new("j", vec![TaskGroup::new(request.clone(), 1), TaskGroup::new(request, 2)])
    }

    /// Returns the priorities of a job and of its task groups, whether it preempts, and its class.
    fn resolved(
        jobs: &Jobs,
        job: AskedPriority,
        tasks: Vec<AskedPriority>,
    ) -> Result<(i32, Vec<i32>, bool, Option<String>), JobError> {
        let mut spec = spec();
        jobs.resolve_priorities(&mut spec, &AskedPriorities { job, tasks })?;
        let of_tasks = spec.tasks.iter().map(|group| group.priority).collect();
        Ok((spec.priority, of_tasks, spec.preempts, spec.priority_class.map(|name| name.to_string())))
    }

    #[test]
    fn a_class_becomes_the_number_that_it_has_when_a_job_is_submitted() {
        let mut jobs = with_classes();
        let high = || Some("high".to_owned());
        let of_high = || resolved(&jobs, asked(None, Some("high")), Vec::new());
        assert_eq!(of_high(), Ok((1_000, vec![1_000, 1_000], true, high())));
        let both = resolved(&jobs, asked(Some(1_000), Some("high")), vec![asked(Some(-1), None)]);
        assert_eq!(both, Ok((1_000, vec![-1, 1_000], true, high())));
        let of_tasks = vec![asked(None, Some("high")), asked(None, Some("patient"))];
        assert_eq!(resolved(&jobs, asked(Some(3), None), of_tasks), Ok((3, vec![1_000, 10], true, None)));
        assert_eq!(resolved(&jobs, asked(None, None), Vec::new()), Ok((0, vec![0, 0], true, None)));
        let patient = resolved(&jobs, asked(None, Some("patient")), Vec::new());
        assert_eq!(patient, Ok((10, vec![10, 10], false, Some("patient".to_owned()))));
        jobs.set_priority_class(PriorityClass::new("high", 7)).unwrap();
        let of_high = resolved(&jobs, asked(None, Some("high")), Vec::new());
        assert_eq!(of_high, Ok((7, vec![7, 7], true, high())));
    }

    #[test]
    fn the_default_class_is_for_jobs_that_give_nothing() {
        let mut jobs = with_classes();
        jobs.set_priority_class(default("usual", 5)).unwrap();
        let usual = || Some("usual".to_owned());
        let of_tasks = vec![asked(Some(2), None)];
        assert_eq!(resolved(&jobs, asked(None, None), of_tasks), Ok((5, vec![2, 5], true, usual())));
        assert_eq!(resolved(&jobs, asked(Some(0), None), Vec::new()), Ok((0, vec![0, 0], true, None)));
        // There is one at most. It may change, and give way to another one.
        let second = ClassError::SecondDefault { class: "high".into(), default: "usual".into() };
        assert_eq!(jobs.set_priority_class(default("high", 9)), Err(second));
        assert_eq!(jobs.priority_class("high"), Some(&PriorityClass::new("high", 1_000)));
        jobs.set_priority_class(default("usual", 6)).unwrap();
        jobs.set_priority_class(PriorityClass::new("usual", 6)).unwrap();
        jobs.set_priority_class(default("high", 9)).unwrap();
        assert_eq!(resolved(&jobs, asked(None, None), Vec::new()).unwrap().0, 9);
        jobs.remove_priority_class(&"high".into()).unwrap();
        assert_eq!(resolved(&jobs, asked(None, None), Vec::new()).unwrap().0, 0);
    }

    #[test]
    fn what_contradicts_a_class_is_refused() {
        let mut jobs = with_classes();
        let job: Arc<str> = "j".into();
        let unknown = JobError::UnknownClass { job: Arc::clone(&job), group: None, class: "no".into() };
        assert_eq!(resolved(&jobs, asked(None, Some("no")), Vec::new()), Err(unknown));
        let other = |group| JobError::OtherPriority {
            job: Arc::clone(&job),
            group,
            class: "high".into(),
            value: 1_000,
            priority: 5,
        };
        assert_eq!(resolved(&jobs, asked(Some(5), Some("high")), Vec::new()), Err(other(None)));
        let of_tasks = vec![asked(None, None), asked(Some(5), Some("high"))];
        assert_eq!(resolved(&jobs, asked(None, None), of_tasks), Err(other(Some(1))));
        assert_eq!(jobs.remove_priority_class(&"no".into()), Err(ClassError::Unknown("no".into())));
    }

    #[test]
    fn there_are_so_many_classes_and_no_more() {
        let mut jobs = Jobs::new();
        for number in 0..PRIORITY_CLASSES_MAX {
            jobs.set_priority_class(PriorityClass::new(&format!("c{number}"), 0)).unwrap();
        }
        let more = jobs.set_priority_class(PriorityClass::new("more", 0));
        assert_eq!(more, Err(ClassError::TooMany(PRIORITY_CLASSES_MAX)));
        jobs.set_priority_class(PriorityClass::new("c7", 1)).unwrap();
        jobs.remove_priority_class(&"c8".into()).unwrap();
        jobs.set_priority_class(PriorityClass::new("more", 0)).unwrap();
        let names: Vec<&str> = jobs.classes_after(Some("c997")).map(|class| &*class.name).collect();
        assert_eq!(names, ["c998", "c999", "more"]);
    }
}
