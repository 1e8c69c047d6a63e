//! Queues: how they are made, changed, removed and found.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use super::{Jobs, Queue, QueueContents, QueueError, QueueId, QueueSpec};
use crate::fairness::{Amounts, Dim};
use crate::limits::QUEUE_LEVELS_MAX;
use crate::resource::Amount;
use crate::time::Time;

impl Jobs {
    /// Adds a queue.
    ///
    /// # Errors
    /// The reason why it is refused. Nothing has changed.
    pub fn add_queue(&mut self, spec: QueueSpec) -> Result<QueueId, QueueError> {
        if self.queue_names.contains_key(&spec.name) {
            return Err(QueueError::Exists(spec.name));
        }
        self.check_queue(&spec, None)?;
        if self.chain(spec.parent).count() > QUEUE_LEVELS_MAX {
            return Err(QueueError::TooDeep(spec.name));
        }
        let parent = &self.queues[spec.parent.0 as usize];
        if parent.is_used() {
            let queue = Arc::clone(&parent.spec.name);
            return Err(QueueError::HasJobs { queue, has: parent.contents() });
        }
        let id = self.next_queue(spec.parent);
        self.queues[spec.parent.0 as usize].children.push(id);
        self.queue_names.insert(Arc::clone(&spec.name), id);
        self.note_queue(&spec.name);
        match self.queues.get_mut(id.0 as usize) {
            Some(vacant) => *vacant = Queue::new(spec),
            None => self.queues.push(Queue::new(spec)),
        }
        self.open_past(id);
        self.changes += 1;
        self.queue_changes += 1;
        Ok(id)
    }

    /// Returns the id of a new queue: one that a removed queue had, if it is after that of the parent.
    fn next_queue(&mut self, parent: QueueId) -> QueueId {
        let vacant = self.vacant.range((Excluded(parent), Unbounded)).next().copied();
        if let Some(id) = vacant {
            self.vacant.remove(&id);
        }
        let next = || QueueId(u32::try_from(self.queues.len()).expect("fewer queues than memory has places"));
        vacant.unwrap_or_else(next)
    }

    /// Removes a queue.
    ///
    /// # Errors
    /// It is the root, or it has jobs or queues below it. Nothing has changed.
    pub fn remove_queue(&mut self, id: QueueId) -> Result<(), QueueError> {
        let queue = self.queue(id);
        let name = Arc::clone(&queue.spec.name);
        if id == QueueId::ROOT {
            return Err(QueueError::Root);
        }
        if !queue.children.is_empty() {
            return Err(QueueError::HasQueues(name));
        }
        if queue.is_used() {
            // Ended jobs are in the way only if others are, or if nobody has forgotten them before.
            let live = queue.jobs().filter(|&job| !self.job(job).has_ended()).count();
            let all = queue.contents();
            let has = QueueContents { jobs: live, ..all };
            let has = if has.jobs + has.direct > 0 { has } else { all };
            return Err(QueueError::InUse { queue: name, has });
        }
        let parent = queue.spec.parent;
        self.note_pasts(id);
        self.queues[parent.0 as usize].children.retain(|&child| child != id);
        self.queue_names.remove(&name);
        self.queues[id.0 as usize] = Queue::vacant();
        self.vacant.insert(id);
        self.changes += 1;
        self.queue_changes += 1;
        self.note_queue(&name);
        Ok(())
    }

    /// Replaces what a queue was submitted with. It keeps its name and its parent. With another half-life, it keeps what
    /// it has held on average.
    ///
    /// # Errors
    /// The reason why the change is refused. Nothing has changed.
    pub fn update_queue(&mut self, id: QueueId, spec: QueueSpec, now: Time) -> Result<(), QueueError> {
        let before = &self.queue(id).spec;
        let spec = QueueSpec { name: Arc::clone(&before.name), parent: before.parent, ..spec };
        self.check_queue(&spec, Some(id))?;
        self.note_queue(&spec.name);
        let has_changed = self.queue(id).spec.usage_half_life_ns != spec.usage_half_life_ns;
        self.queues[id.0 as usize].spec = spec;
        if has_changed {
            self.follow_half_lives(id, now);
        }
        self.changes += 1;
        self.queue_changes += 1;
        Ok(())
    }

    /// Checks a queue that is new, or that replaces `id`.
    fn check_queue(&self, spec: &QueueSpec, id: Option<QueueId>) -> Result<(), QueueError> {
        if spec.weight == 0 {
            return Err(QueueError::Weight(Arc::clone(&spec.name)));
        }
        if let Some(part) = spec.starves_below.filter(|&part| i64::from(part) > Amount::SCALE) {
            return Err(QueueError::StarvesAboveShare { queue: Arc::clone(&spec.name), part });
        }
        for (dim, capability) in spec.capability.iter() {
            let guarantee = spec.guarantee.get(dim);
            if guarantee > capability {
                let queue = Arc::clone(&spec.name);
                return Err(QueueError::GuaranteeAboveCapability { queue, dim, guarantee, capability });
            }
        }
        // The root may have no guarantee of its own: the cluster itself is what its children share.
        if spec.parent != QueueId::ROOT {
            let parent = self.queue(spec.parent);
            let others = parent.children.iter().filter(|&&child| Some(child) != id);
            let mut sum = spec.guarantee.clone();
            others.for_each(|&child| sum.add(&self.queue(child).spec.guarantee));
            check_guarantees(&parent.spec, &sum)?;
        }
        if let Some(id) = id {
            let mut sum = Amounts::zero();
            self.queue(id).children.iter().for_each(|&child| sum.add(&self.queue(child).spec.guarantee));
            if id != QueueId::ROOT {
                check_guarantees(spec, &sum)?;
            }
        }
        Ok(())
    }

    /// Returns a queue.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn queue(&self, id: QueueId) -> &Queue {
        &self.queues[id.0 as usize]
    }

    /// Returns the queue of a name.
    #[must_use]
    pub fn queue_named(&self, name: &str) -> Option<QueueId> {
        self.queue_names.get(name).copied()
    }

    /// Returns the queues of all ids, in order of id: the root first, parents before their children. In the place of a
    /// removed queue there is one without anything, which is in no other.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        (0..).map(QueueId).zip(&self.queues)
    }

    /// Returns the queues that were made and not removed, in order of id. The root is not among them.
    pub fn named_queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        let is_named = |id: QueueId| id != QueueId::ROOT && !self.vacant.contains(&id);
        self.queues().filter(move |&(id, _)| is_named(id))
    }

    /// Returns the queues that were made and not removed after one, by name. The root is not among them.
    pub fn queues_after(&self, after: Option<&str>) -> impl Iterator<Item = QueueId> + '_ {
        let after = after.map_or(Unbounded, Excluded);
        let queues = self.queue_names.range::<str, _>((after, Unbounded)).map(|(_, &id)| id);
        queues.filter(|&id| id != QueueId::ROOT)
    }

    /// Returns a queue and all that contain it, up to the root.
    pub fn chain(&self, id: QueueId) -> impl Iterator<Item = QueueId> + '_ {
        std::iter::successors(Some(id), |&id| (id != QueueId::ROOT).then(|| self.queue(id).spec.parent))
    }

    /// Returns a setting of a queue, or that of the nearest queue that contains it and has one.
    pub fn inherited<T>(&self, id: QueueId, setting: impl Fn(&QueueSpec) -> Option<T>) -> Option<T> {
        self.chain(id).find_map(|queue| setting(self.queue(queue).spec()))
    }

    /// Returns whether a queue, or one below it, has jobs or direct placements.
    #[must_use]
    pub fn has_jobs(&self, id: QueueId) -> bool {
        let queue = self.queue(id);
        queue.is_used() || queue.children.iter().any(|&child| self.has_jobs(child))
    }
}

/// Checks that the children of a queue are guaranteed no more than the queue itself.
fn check_guarantees(parent: &QueueSpec, children: &Amounts) -> Result<(), QueueError> {
    let above = children.iter().find(|&(dim, amount): &(Dim, i64)| amount > parent.guarantee.get(dim));
    above.map_or(Ok(()), |(dim, children)| {
        let guarantee = parent.guarantee.get(dim);
        Err(QueueError::ChildrenGuarantee { parent: Arc::clone(&parent.name), dim, children, guarantee })
    })
}
