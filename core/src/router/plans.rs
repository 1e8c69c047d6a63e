//! The planners behind a port: routes jobs to them and combines their replies.
//!
//! A job may take two slots of each ring: one for itself, and one for its cancel. So a job that is cancelled is
//! answered when its planner has also taken the cancel.
//!
//! Jobs that waited before have room in any case, because they were admitted once. While as many jobs wait as may, they are
//! kept in the *backlog*.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use slab::Slab;

use super::port::{NoRoom, PortReply, Tag};
use crate::group::{
    ClientKey, CountGroups, GroupTurn, GroupView, PlanJob, PlanReply, WaitExplanation, WaitSubject, WaitsFor,
    keeper_of,
};
use crate::ids::GroupId;
use crate::limits::{PLANS_IN_FLIGHT_MAX, PORT_GROUPS_WAITING_MAX};
use crate::link::{Consumer, Doorbell, Producer};
use crate::reply::reply_of;
use crate::state::Origin;
use crate::time::Time;

/// A job that is sent to a planner.
pub(crate) struct PlanSubmission {
    pub(crate) token: u32,
    pub(crate) client: ClientKey,
    /// The request of a client session that asks for the job, if it is one.
    pub(crate) origin: Option<Origin>,
    /// The job is not done unless it has begun by this time.
    pub(crate) due: Time,
    /// `None` cancels the job with the same token.
    pub(crate) job: Option<PlanJob>,
}

impl PlanSubmission {
    /// A job that no request of a client session asks for, and that has no deadline, or the cancel of a job.
    fn new(token: usize, client: ClientKey, job: Option<PlanJob>) -> Self {
        let token = u32::try_from(token).expect("PLANS_IN_FLIGHT_MAX fits u32");
        Self { token, client, origin: None, due: Time::NEVER, job }
    }
}

/// A message from a planner about the job of this token.
pub(crate) struct PlanAnswer {
    pub(crate) token: u32,
    /// `None`: its cancel was taken. This does not mean that it found the job.
    pub(crate) reply: Option<PlanReply>,
}

/// The rings between a port and one planner, and the bell of the planner.
pub(crate) struct PlanLink {
    pub(crate) jobs: Producer<PlanSubmission>,
    pub(crate) replies: Consumer<PlanAnswer>,
    pub(crate) bell: Arc<Doorbell>,
}

struct Pending {
    tag: Tag,
    /// The planner that has the job. Each has it if it is a list.
    planner: usize,
    client: ClientKey,
    is_cancelled: bool,
    /// It may wait for capacity.
    waits: bool,
    /// The number of awaited answers.
    left: usize,
    reply: Option<PlanReply>,
    list: Option<List>,
    /// An explanation that is complete but for the groups that come first, and the number of planners that count theirs.
    explained: Option<(Box<WaitExplanation>, usize)>,
}

/// A list of groups, to which every planner contributes a page.
struct List {
    limit: u16,
    groups: Vec<GroupView>,
}

/// A job that is asked for.
pub(super) struct JobAsked {
    pub(super) origin: Option<Origin>,
    pub(super) tag: Tag,
    pub(super) client: ClientKey,
    pub(super) job: PlanJob,
    /// The job is not done unless it has begun by this time.
    pub(super) due: Time,
}

/// The planners behind a port.
#[derive(Default)]
pub(super) struct Plans {
    /// The planners of groups and statements, and then the keeper of jobs, if there is one.
    links: Vec<PlanLink>,
    has_keeper: bool,
    touched: Vec<bool>,
    pending: Slab<Pending>,
    /// The number of pending jobs that may wait for capacity.
    waiting: usize,
    /// The jobs that wait for room at the rings, by the time since which each waits, then in order of arrival.
    backlog: BTreeMap<(Time, u64), JobAsked>,
    /// The deadlines of the backlog.
    deadlines: BTreeSet<(Time, (Time, u64))>,
    /// The number of jobs that ever were in the backlog.
    arrivals: u64,
    /// The jobs that were cancelled in the backlog, with their replies.
    cancelled: Vec<(Tag, PlanReply)>,
    /// The planner that got the last job that any planner may do.
    next: usize,
}

impl Plans {
    pub(super) fn add(&mut self, link: PlanLink) {
        self.links.push(link);
        self.touched.push(false);
    }

    /// Adds the keeper of jobs, after all others.
    pub(super) fn add_keeper(&mut self, link: PlanLink) {
        assert!(!self.has_keeper, "there is one keeper of jobs");
        self.add(link);
        self.has_keeper = true;
    }

    /// Returns whether there is a keeper of jobs.
    pub(super) fn has_keeper(&self) -> bool {
        self.has_keeper
    }

    /// Returns the number of planners of groups and statements.
    pub(super) fn count(&self) -> usize {
        self.links.len() - usize::from(self.has_keeper)
    }

    /// Returns the number of jobs that are not answered.
    pub(super) fn pending(&self) -> usize {
        self.pending.len() + self.backlog.len() + self.cancelled.len()
    }

    pub(super) fn has_room_for(&self, job: &PlanJob) -> bool {
        matches!(job, PlanJob::Resume(..)) || self.pending.len() < PLANS_IN_FLIGHT_MAX
    }

    /// Returns whether a job that waited before may be sent to its planner.
    fn may_resume(&self) -> bool {
        self.waiting < PORT_GROUPS_WAITING_MAX && self.pending.len() < PLANS_IN_FLIGHT_MAX
    }

    /// Sends a job to its planner, or to all planners.
    ///
    /// # Errors
    /// Returns `NoRoom` if there are too many jobs, unless this one waited before.
    pub(super) fn submit(&mut self, asked: JobAsked) -> Result<(), NoRoom> {
        let job = &asked.job;
        let is_served = match job {
            PlanJob::ListGroups(..) => !self.links.is_empty(),
            job if job.is_for_keeper() => self.has_keeper,
            _ => self.count() > 0,
        };
        assert!(is_served, "nobody does {job:?}: ask `planner_count` or `keeps_jobs` first");
        if !self.has_room_for(job) {
            return Err(NoRoom);
        }
        let since = if let &PlanJob::Resume(since, _) = job { Some(since) } else { None };
        match since {
            Some(since) if !(self.backlog.is_empty() && self.may_resume()) => {
                self.arrivals += 1;
                let key = (since, self.arrivals);
                self.deadlines.extend(job.until().map(|until| (until, key)));
                self.backlog.insert(key, asked);
            }
            _ => self.send_job(asked),
        }
        Ok(())
    }

    /// Takes a job out of the backlog.
    fn take(&mut self, key: (Time, u64)) -> JobAsked {
        let waiting = self.backlog.remove(&key).expect("it is in the backlog");
        let until = waiting.job.until().expect("what waited before may wait");
        let was_there = self.deadlines.remove(&(until, key));
        assert!(was_there, "each job of the backlog has a deadline");
        waiting
    }

    /// Returns the first deadline of the jobs that no planner has yet.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|&(until, _)| until)
    }

    /// Answers the jobs that no planner has yet, and whose deadline has passed.
    pub(super) fn end_overdue(&mut self, now: Time, mut reply: impl FnMut(Tag, PortReply)) {
        while let Some(&(until, key)) = self.deadlines.first()
            && until <= now
        {
            let JobAsked { tag, job, .. } = self.take(key);
            reply(tag, PortReply::Plan(Box::new(job.without_turn())));
        }
    }

    fn send_job(&mut self, JobAsked { origin, tag, client, job, due }: JobAsked) {
        let mut list = None;
        let routed = if let PlanJob::Resume(_, job) = &job { job } else { &job };
        let planner = match *routed {
            PlanJob::GrowGroup(group, ..)
            | PlanJob::ShrinkGroup(group, _)
            | PlanJob::RemoveGroup(group)
            | PlanJob::GroupStatus(group) => self.keeper(group),
            PlanJob::Resume(..) => unreachable!("the job that is resumed waited itself"),
            PlanJob::Explain(ref ask) => match ask.of {
                WaitSubject::Group { id, .. } => self.keeper(id),
                WaitSubject::Placement { .. } => self.any(),
            },
            PlanJob::CreateGroup(ref spec) if spec.queue.is_some() => self.jobs_keeper(),
            PlanJob::CreateGroup(_) | PlanJob::Submit(_) => self.any(),
            PlanJob::CountGroups(_) => unreachable!("only this port counts groups, for an explanation"),
            PlanJob::Jobs(_) | PlanJob::Place(_) | PlanJob::PlaceBatch(_) | PlanJob::ExplainInQueue(..) => {
                self.jobs_keeper()
            }
            PlanJob::ListWaiting(planner, _) => usize::from(planner),
            PlanJob::ListGroups(_, _, limit) => {
                list = Some(List { limit, groups: Vec::new() });
                0
            }
        };
        // The keeper of jobs lists its groups, too.
        let last = if list.is_some() { self.links.len() - 1 } else { planner };
        let left = last + 1 - planner;
        let waits = job.waits();
        self.waiting += usize::from(waits);
        let is_cancelled = false;
        let reply = None;
        let pending =
            Pending { tag, planner, client, is_cancelled, waits, left, reply, list, explained: None };
        let token = self.pending.insert(pending);
        let submission = PlanSubmission { due, ..PlanSubmission::new(token, client, None) };
        for planner in planner..last {
            self.send(planner, PlanSubmission { job: Some(job.clone()), ..submission });
        }
        self.send(last, PlanSubmission { origin, job: Some(job), ..submission });
    }

    /// Cancels the job of `tag` if it is still in flight and was not cancelled before.
    pub(super) fn cancel(&mut self, tag: Tag) {
        let found = self.backlog.iter().find(|(_, waiting)| waiting.tag == tag).map(|(&key, _)| key);
        if let Some(key) = found {
            let cancelled = self.take(key).job.cancelled();
            return self.cancelled.push((tag, cancelled));
        }
        let found = self.pending.iter_mut().find(|(_, pending)| pending.tag == tag);
        if let Some((token, pending)) = found
            && !pending.is_cancelled
            && pending.list.is_none()
        {
            pending.is_cancelled = true;
            pending.left += 1;
            let planner = pending.planner;
            let client = pending.client;
            self.send(planner, PlanSubmission::new(token, client, None));
        }
    }

    /// Returns the planner whose turn it is to do what any may do.
    fn any(&mut self) -> usize {
        self.next = (self.next + 1) % self.count();
        self.next
    }

    fn jobs_keeper(&self) -> usize {
        assert!(self.has_keeper, "a request about jobs, and nobody keeps them: ask `keeps_jobs` first");
        self.links.len() - 1
    }

    fn keeper(&self, group: GroupId) -> usize {
        if group.is_in_queue() {
            return self.jobs_keeper();
        }
        usize::from(keeper_of(group, u16::try_from(self.count()).expect("PLANNERS_MAX fits u16")))
    }

    fn send(&mut self, planner: usize, submission: PlanSubmission) {
        let pushed = self.links[planner].jobs.push(submission);
        assert!(pushed.is_ok(), "a ring holds all that a port may have in flight");
        self.touched[planner] = true;
    }

    pub(super) fn flush(&mut self) {
        for (touched, link) in self.touched.iter_mut().zip(&self.links) {
            if std::mem::take(touched) {
                link.bell.ring();
            }
        }
    }

    pub(super) fn poll(&mut self, mut reply: impl FnMut(Tag, PortReply)) -> usize {
        let mut taken = self.cancelled.len();
        for (tag, cancelled) in self.cancelled.drain(..) {
            reply(tag, PortReply::Plan(Box::new(cancelled)));
        }
        for planner in 0..self.links.len() {
            while let Some(answer) = self.links[planner].replies.pop() {
                taken += 1;
                if let Some((tag, done)) = self.handle_answer(planner, answer) {
                    reply(tag, PortReply::Plan(Box::new(done)));
                }
            }
        }
        while self.may_resume()
            && let Some((&key, _)) = self.backlog.first_key_value()
        {
            let waiting = self.take(key);
            self.send_job(waiting);
        }
        taken
    }

    fn handle_answer(
        &mut self,
        planner: usize,
        PlanAnswer { token, reply }: PlanAnswer,
    ) -> Option<(Tag, PlanReply)> {
        let token = token as usize;
        let reply = match reply {
            Some(reply) => Some(self.go_on_explaining(planner, token, reply)?),
            None => None,
        };
        let pending = self.pending.get_mut(token).expect("an answer belongs to a pending job");
        pending.left -= 1;
        match (reply, &mut pending.list) {
            // If one planner has no page of a list, there is no list.
            (Some(reply @ PlanReply::Late), _) | (Some(reply), None) => pending.reply = Some(reply),
            (Some(page), Some(list)) => list.groups.append(&mut reply_of(page)),
            (None, _) => {}
        }
        if pending.left > 0 {
            return None;
        }
        let Pending { tag, reply, list, waits, .. } = self.pending.remove(token);
        self.waiting -= usize::from(waits);
        let of_list = list.map(|List { limit, mut groups }| {
            groups.sort_by_key(|group| group.id);
            groups.truncate(usize::from(limit));
            PlanReply::Groups(groups)
        });
        Some((tag, reply.or(of_list).expect("each job is answered")))
    }

    /// Takes the parts of an explanation: first that of its planner, then how many groups come first at each. Returns the reply
    /// to the job, once it is complete. Others are returned as they are.
    fn go_on_explaining(&mut self, planner: usize, token: usize, reply: PlanReply) -> Option<PlanReply> {
        let planners = self.count();
        let pending = self.pending.get_mut(token).expect("an answer belongs to a pending job");
        match reply {
            // What the keeper of jobs explains has its place in a queue.
            PlanReply::Explained(Ok(explained))
                if explained.waits_for != WaitsFor::Nothing && planner < planners =>
            {
                pending.explained = Some((explained, planners));
                for planner in 0..planners {
                    self.ask_to_count(planner, token, None);
                }
                None
            }
            PlanReply::Counted(counted) => {
                let (explained, left) =
                    pending.explained.as_mut().expect("groups are counted for an explanation");
                explained.place.add(counted.place.before, counted.place.waiting);
                if counted.next.is_some() {
                    self.ask_to_count(planner, token, counted.next);
                    return None;
                }
                *left -= 1;
                if *left > 0 {
                    return None;
                }
                let (explained, _) = pending.explained.take()?;
                Some(PlanReply::Explained(Ok(explained)))
            }
            reply => Some(reply),
        }
    }

    /// Asks a planner for a page of the count of groups that come before what is explained.
    fn ask_to_count(&mut self, planner: usize, token: usize, after: Option<GroupTurn>) {
        let pending = &self.pending[token];
        let client = pending.client;
        let (explained, _) = pending.explained.as_ref().expect("groups are counted for an explanation");
        let count = CountGroups { turn: explained.turn(), after };
        let job = PlanJob::CountGroups(Box::new(count));
        self.send(planner, PlanSubmission::new(token, client, Some(job)));
    }

    pub(super) fn is_idle(&mut self) -> bool {
        self.cancelled.is_empty() && self.links.iter_mut().all(|link| link.replies.is_empty())
    }
}
