//! What queues and their users have held, with a half-life.
//!
//! A task that gets capacity or gives it back changes the sums of its user, of its queue and of all queues that contain
//! it. Nothing is done for the others, and nothing as time passes. [`PastSums`](crate::fairness::PastSums) says how. What
//! is being released counts as held until it is free.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Job, JobError, JobId, JobSpec, Jobs, PastAmount, PastRecord, QueueId, Task, TaskState, Usage};
use crate::fairness::{Amounts, Dim, HalfLife, Moment, PastSums, dominant_share};
use crate::limits::{QUEUE_USERS_MAX, QUEUE_USERS_SHOWN_MAX};
use crate::time::Time;

/// The number of users of a queue below which those that are not needed are kept.
const USERS_KEPT: usize = 16;

/// Whose past use it is: that of a queue, or of a user in it. The empty name has the jobs without a user.
pub(super) type PastKey = (Arc<str>, Option<Arc<str>>);

/// How past use counts, unless a queue says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PastRules {
    /// The half-life of queues that have none, in ns.
    half_life_ns: u64,
    /// Whether users matter although the half-life may be 0.
    follows_users: bool,
}

/// What a queue has held, and its users.
#[derive(Debug, Default)]
pub(super) struct QueuePast {
    /// `None`: only what is held now counts.
    half_life: Option<HalfLife>,
    sums: PastSums,
    users: BTreeMap<Arc<str>, UserPast>,
    /// The number of users at which the next look for those that are not needed is due.
    look_at: usize,
}

/// What a user uses and has held in a queue.
#[derive(Debug, Default)]
struct UserPast {
    usage: Usage,
    sums: PastSums,
}

/// A user of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserView {
    /// Its name. Empty: the jobs without a user.
    pub name: Arc<str>,
    /// What its jobs use in the plan: held or claimed.
    pub planned: Amounts,
    /// What they have held on average.
    pub past: Amounts,
}

/// Returns the name under which the use of a job counts.
fn user_of(spec: &JobSpec) -> &str {
    spec.user.as_deref().unwrap_or_default()
}

/// Returns whether a task in this state keeps capacity from others.
fn is_in_use(state: TaskState) -> bool {
    state.holds() || state == TaskState::Releasing
}

/// Returns the average of sums at a moment. `None`: there is no half-life.
fn average(moment: Option<Moment>, sums: &PastSums, usage: &Usage) -> Amounts {
    moment.map(|moment| sums.average(moment, &usage.in_use())).unwrap_or_default()
}

impl UserPast {
    fn is_idle(&self) -> bool {
        self.usage.demand().is_zero()
    }
}

impl QueuePast {
    fn new(half_life: Option<HalfLife>) -> Self {
        Self { half_life, look_at: USERS_KEPT, ..Self::default() }
    }

    fn moment(&self, now: Time) -> Option<Moment> {
        self.half_life.map(|half_life| half_life.moment(now))
    }

    /// Begins to count what is held now.
    fn begin(&mut self, usage: &Usage, now: Time) {
        let moment = self.moment(now);
        let begin = |usage: &Usage| {
            let mut sums = PastSums::default();
            if let Some(moment) = moment {
                sums.change(moment, &Amounts::zero(), &usage.in_use());
            }
            sums
        };
        self.sums = begin(usage);
        self.users.values_mut().for_each(|user| user.sums = begin(&user.usage));
    }

    /// Counts with another half-life from now on.
    fn change_half_life(&mut self, half_life: Option<HalfLife>, usage: &Usage, now: Time) {
        let before = std::mem::replace(&mut self.half_life, half_life);
        let Some((old, new)) = before.zip(half_life) else { return self.begin(usage, now) };
        let [old, new] = [old, new].map(|half_life| half_life.moment(now));
        self.sums.change_half_life(old, new, &usage.in_use());
        for user in self.users.values_mut() {
            user.sums.change_half_life(old, new, &user.usage.in_use());
        }
    }

    fn user_mut(&mut self, name: &str) -> &mut UserPast {
        if !self.users.contains_key(name) {
            self.users.insert(name.into(), UserPast::default());
        }
        self.users.get_mut(name).expect("it is there")
    }

    /// Returns the users who have no jobs that want anything, each with what it has held on average.
    fn idle(&self, moment: Option<Moment>) -> impl Iterator<Item = (&Arc<str>, Amounts)> {
        let idle = self.users.iter().filter(|(_, user)| user.is_idle());
        idle.map(move |(name, user)| (name, average(moment, &user.sums, &user.usage)))
    }
}

impl Jobs {
    /// Says how past use counts, before there are queues: the half-life of queues that have none, in ns, and whether
    /// users matter although it is 0.
    ///
    /// # Panics
    /// If there are queues.
    pub(crate) fn count_past(&mut self, half_life_ns: u64, follows_users: bool) {
        assert_eq!(self.queues.len(), 1, "past use is counted from the first queue on");
        self.past_rules = PastRules { half_life_ns, follows_users };
    }

    /// Returns the half-life of a queue, in ns. 0: only what runs now counts.
    #[must_use]
    pub fn usage_half_life_ns(&self, queue: QueueId) -> u64 {
        let own = self.inherited(queue, |spec| spec.usage_half_life_ns);
        own.unwrap_or(self.past_rules.half_life_ns)
    }

    /// Returns whether the past use of a queue and its users are kept, and with which half-life.
    fn past_kept(&self, queue: QueueId) -> Option<Option<HalfLife>> {
        let half_life = HalfLife::new(self.usage_half_life_ns(queue));
        let is_kept = half_life.is_some() || self.past_rules.follows_users;
        (is_kept && queue != QueueId::ROOT).then_some(half_life)
    }

    /// Gives a new queue its past.
    pub(super) fn open_past(&mut self, id: QueueId) {
        let kept = self.past_kept(id);
        self.queues[id.0 as usize].past = kept.map(|half_life| Box::new(QueuePast::new(half_life)));
    }

    /// Brings the half-lives of a queue and of all below it into line with what queues say now.
    pub(super) fn follow_half_lives(&mut self, id: QueueId, now: Time) {
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            left.extend(self.queue(id).children.iter().copied());
            let kept = self.past_kept(id);
            let has = self.queue(id).past.as_ref().map(|past| past.half_life);
            if has == kept {
                continue;
            }
            self.note_pasts(id);
            match (kept, has.is_some()) {
                (None, _) => self.queues[id.0 as usize].past = None,
                (Some(half_life), true) => {
                    let queue = &mut self.queues[id.0 as usize];
                    let past = queue.past.as_mut().expect("the queue has one");
                    past.change_half_life(half_life, &queue.usage, now);
                }
                (Some(_), false) => {
                    self.open_past(id);
                    for job in self.queue(id).all_jobs().collect::<Vec<_>>() {
                        self.user_asks(job);
                    }
                    self.begin_past(id, now);
                }
            }
        }
    }

    /// Begins to count what a queue and its users hold now.
    fn begin_past(&mut self, id: QueueId, now: Time) {
        let queue = &mut self.queues[id.0 as usize];
        if let Some(past) = &mut queue.past {
            past.begin(&queue.usage, now);
        }
    }

    /// Adds what a job uses to its user.
    pub(super) fn user_asks(&mut self, job: JobId) {
        let Self { queues, jobs, .. } = self;
        let job = &jobs[&job];
        if let Some(past) = &mut queues[job.spec.queue.0 as usize].past {
            past.user_mut(user_of(&job.spec)).usage.add(&job.usage);
        }
    }

    /// Makes room for the user of a job.
    ///
    /// # Errors
    /// The queue has too many users with jobs. Nothing has changed.
    pub(super) fn admit_user(&mut self, spec: &JobSpec) -> Result<(), JobError> {
        let Some(past) = &self.queue(spec.queue).past else { return Ok(()) };
        if past.users.contains_key(user_of(spec)) || past.users.len() < past.look_at {
            return Ok(());
        }
        let moment = past.moment(spec.created);
        let mut gone: Vec<Arc<str>> = Vec::new();
        let mut least = None;
        let of_queue = average(moment, &past.sums, self.queue(spec.queue).usage());
        for (name, held) in past.idle(moment) {
            if held.is_zero() {
                gone.push(Arc::clone(name));
                continue;
            }
            let share = dominant_share(&held, &of_queue);
            if least.as_ref().is_none_or(|(of_least, _)| share < *of_least) {
                least = Some((share, Arc::clone(name)));
            }
        }
        if past.users.len() - gone.len() >= QUEUE_USERS_MAX {
            let Some((_, name)) = least else {
                let queue = Arc::clone(&self.queue(spec.queue).spec.name);
                return Err(JobError::TooManyUsers { job: Arc::clone(&spec.name), queue });
            };
            gone.push(name);
        }
        for name in gone {
            self.note_past(spec.queue, Some(&name));
            let past = self.queues[spec.queue.0 as usize].past.as_mut();
            past.expect("the queue has one").users.remove(&name);
        }
        let past = self.queues[spec.queue.0 as usize].past.as_mut().expect("the queue has one");
        past.look_at = (2 * past.users.len()).clamp(USERS_KEPT, QUEUE_USERS_MAX);
        Ok(())
    }

    /// Follows a task of a queue with a past that is about to leave a state for another one. `at` is when: of a change that is taken back, it is
    /// when that was made.
    pub(super) fn follow_past(&mut self, id: JobId, before: &Task, state: TaskState, at: Time) {
        let queue = self.job(id).spec.queue;
        let amounts = &before.class.amounts;
        let none = Amounts::zero();
        let [was, is] = [before.state, state].map(is_in_use);
        let [held, holds] = [was, is].map(|in_use| if in_use { amounts } else { &none });
        let spec = &self.job(id).spec;
        let user: Arc<str> = spec.user.clone().unwrap_or_default();
        if was != is {
            self.note_past(queue, Some(&user));
        }
        let past = self.queues[queue.0 as usize].past.as_mut().expect("the queue has a past");
        let mut moment: Option<(HalfLife, Moment)> = None;
        let mut moment_of = |half_life: HalfLife| match moment {
            Some((of, moment)) if of == half_life => moment,
            _ => moment.insert((half_life, half_life.moment(at))).1,
        };
        let half_life = past.half_life;
        let of_user = past.user_mut(&user);
        of_user.usage.leave(before.state, amounts);
        of_user.usage.enter(state, amounts);
        if was == is {
            return;
        }
        if let Some(half_life) = half_life {
            of_user.sums.change(moment_of(half_life), held, holds);
        }
        let mut at = queue;
        while at != QueueId::ROOT {
            self.note_past(at, None);
            let queue = &mut self.queues[at.0 as usize];
            if let Some((past, half_life)) =
                queue.past.as_mut().and_then(|past| past.half_life.map(|of| (past, of)))
            {
                past.sums.change(moment_of(half_life), held, holds);
            }
            at = queue.spec.parent;
        }
    }

    /// Returns what the jobs of a queue and of those below it have held on average. Zero without a half-life.
    #[must_use]
    pub fn past_use(&self, queue: QueueId, now: Time) -> Amounts {
        let queue = self.queue(queue);
        let of_past = |past: &QueuePast| average(past.moment(now), &past.sums, &queue.usage);
        queue.past.as_deref().map(of_past).unwrap_or_default()
    }

    /// Returns a user of a queue. `None`: users do not matter, or it is not known.
    #[must_use]
    pub fn user(&self, queue: QueueId, name: &str, now: Time) -> Option<UserView> {
        let past = self.queue(queue).past.as_deref()?;
        let (name, user) = past.users.get_key_value(name)?;
        let held = average(past.moment(now), &user.sums, &user.usage);
        Some(UserView { name: Arc::clone(name), planned: user.usage.planned(), past: held })
    }

    /// Returns what the jobs of a user of a queue use in the plan. `None`: users do not matter, or it is not known.
    #[must_use]
    pub fn planned_of_user(&self, queue: QueueId, name: &str) -> Option<Amounts> {
        let past = self.queue(queue).past.as_deref()?;
        Some(past.users.get(name)?.usage.planned())
    }

    /// Returns the number of users of a queue that are kept.
    #[must_use]
    pub fn user_count(&self, queue: QueueId) -> usize {
        self.queue(queue).past.as_deref().map_or(0, |past| past.users.len())
    }

    /// Returns the users of a queue with the most use, the first one with the largest part of what the queue uses and has
    /// held.
    #[must_use]
    pub fn users(&self, queue: QueueId, now: Time) -> Vec<UserView> {
        let Some(past) = self.queue(queue).past.as_deref() else { return Vec::new() };
        let of_queue = self.past_use(queue, now).plus(&self.queue(queue).usage.planned());
        let moment = past.moment(now);
        let view = |(name, user): (&Arc<str>, &UserPast)| {
            let held = average(moment, &user.sums, &user.usage);
            let view = UserView { name: Arc::clone(name), planned: user.usage.planned(), past: held };
            (dominant_share(&view.planned.plus(&view.past), &of_queue), view)
        };
        let mut users: Vec<_> = past.users.iter().map(view).collect();
        users.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
        users.truncate(QUEUE_USERS_SHOWN_MAX);
        users.into_iter().map(|(_, view)| view).collect()
    }

    /// Returns the record of what a queue or a user has held. `None`: nothing is left of it.
    pub(super) fn past_record(&self, (queue, user): &PastKey) -> Option<PastRecord> {
        let of = self.queue(self.queue_named(queue)?);
        let past = of.past.as_deref()?;
        let (usage, sums) = match user {
            None => (&of.usage, &past.sums),
            Some(user) => past.users.get(user).map(|user| (&user.usage, &user.sums))?,
        };
        let in_use = usage.in_use();
        let amount = |dim: Dim| PastAmount { dim, held: in_use.get(dim), sum: sums.get(dim) };
        let kinds = (0..in_use.kinds().max(sums.kinds())).map(Dim).map(amount);
        let kinds: Vec<PastAmount> = kinds.filter(|kind| kind.held != 0 || kind.sum != 0).collect();
        let queue = Arc::clone(queue);
        let user = user.clone();
        let half_life_ns = past.half_life?.nanos();
        (!kinds.is_empty()).then(|| PastRecord { queue, user, half_life_ns, epoch: sums.epoch(), kinds })
    }

    /// Returns the queue of this name and its users, as keys of what they have held.
    pub(super) fn past_keys(&self, id: QueueId) -> Vec<PastKey> {
        let queue = self.queue(id);
        let name = &queue.spec.name;
        let of_users = queue.past.iter().flat_map(|past| past.users.keys());
        let of_users = of_users.map(|user| (Arc::clone(name), Some(Arc::clone(user))));
        std::iter::once((Arc::clone(name), None)).chain(of_users).collect()
    }

    /// Takes over what an earlier start recorded, when all tasks are there. A change that was not recorded counts as if it
    /// were made now.
    pub(super) fn adopt_pasts(
        &mut self,
        records: Vec<PastRecord>,
        now: Time,
    ) -> Result<(), crate::broken::Broken> {
        for id in self.queues().map(|(id, _)| id).collect::<Vec<_>>() {
            self.begin_past(id, now);
        }
        for record in records {
            let Some(id) = self.queue_named(&record.queue) else {
                let name = &record.queue;
                return Err(crate::broken::broken!("past use of queue `{name}` is recorded, which is not"));
            };
            let queue = &mut self.queues[id.0 as usize];
            let recorded = HalfLife::new(record.half_life_ns);
            let Some((past, recorded)) = queue.past.as_mut().zip(recorded) else { continue };
            let half_life = past.half_life;
            let (usage, sums) = match &record.user {
                None => (&queue.usage, &mut past.sums),
                Some(name) => {
                    let user = past.user_mut(name);
                    (&user.usage, &mut user.sums)
                }
            };
            let held = record.kinds.iter().map(|kind| (kind.dim, kind.held.max(0))).collect();
            *sums = PastSums::of(record.epoch, record.kinds.iter().map(|kind| (kind.dim, kind.sum)));
            let in_use = usage.in_use();
            if held != in_use {
                sums.change(recorded.moment(now), &held, &in_use);
            }
            match half_life {
                None => *sums = PastSums::default(),
                Some(half_life) if half_life != recorded => {
                    sums.change_half_life(recorded.moment(now), half_life.moment(now), &in_use);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Checks that users use what their jobs do.
    pub(super) fn check_users(&self) -> Result<(), crate::broken::Broken> {
        for (_, queue) in self.queues() {
            let Some(past) = &queue.past else { continue };
            let mut usages: BTreeMap<&str, Usage> = BTreeMap::new();
            for job in queue.all_jobs().map(|id| self.job(id)) {
                usages.entry(user_of(&job.spec)).or_default().add(Job::usage(job));
            }
            let known = past.users.iter().filter(|(_, user)| !user.is_idle());
            let known: BTreeMap<&str, &Usage> = known.map(|(name, user)| (&**name, &user.usage)).collect();
            usages.retain(|_, usage| !usage.demand().is_zero());
            if !known
                .iter()
                .map(|(name, usage)| (*name, *usage))
                .eq(usages.iter().map(|(name, usage)| (*name, usage)))
            {
                let name = &queue.spec.name;
                return Err(crate::broken::broken!(
                    "users of `{name}` use {known:?}, {usages:?} by their jobs"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::float_arithmetic, reason = "what is expected is computed in floating point")]
mod tests;
