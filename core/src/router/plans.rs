//! The planners behind a port: routes jobs to them and combines their replies.
//!
//! A job takes one slot of each ring from its submission to its reply. A cancel takes a slot of its own, even
//! if its job is answered before the planner takes the cancel. So cancels are counted separately until their
//! planner confirms them. Cancels above the bound wait here.

use std::collections::BTreeMap;
use std::sync::Arc;

use slab::Slab;

use super::port::{NoRoom, PortReply, Tag};
use crate::group::{ClientKey, GroupView, PlanJob, PlanReply, keeper_of};
use crate::ids::GroupId;
use crate::limits::{PLAN_CANCELS_IN_FLIGHT_MAX, PLANS_IN_FLIGHT_MAX};
use crate::link::{Consumer, Doorbell, Producer};
use crate::reply::reply_of;

/// A job that is sent to a planner.
pub(crate) struct PlanSubmission {
    pub(crate) token: u32,
    pub(crate) client: ClientKey,
    /// `None` cancels the job with the same token.
    pub(crate) job: Option<PlanJob>,
}

/// A message from a planner.
pub(crate) enum PlanAnswer {
    /// The reply to the job of this token.
    Reply { token: u32, reply: PlanReply },
    /// A cancel was taken, so its slot is free again. This does not mean that it found its job.
    CancelTaken,
}

/// The rings between a port and one planner, and the bell of the planner.
pub(crate) struct PlanLink {
    pub(crate) jobs: Producer<PlanSubmission>,
    pub(crate) replies: Consumer<PlanAnswer>,
    pub(crate) bell: Arc<Doorbell>,
}

/// The state of a job's cancel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cancel {
    /// The job is not cancelled.
    None,
    /// The cancel waits for a slot, under this number.
    Queued(u64),
    /// The cancel was sent to the planner.
    Sent,
}

struct Pending {
    tag: Tag,
    /// The planner that has the job. Each has it if it is a list.
    planner: usize,
    client: ClientKey,
    cancel: Cancel,
    list: Option<List>,
}

/// A list of groups, to which every planner contributes a page.
struct List {
    limit: u16,
    left: usize,
    groups: Vec<GroupView>,
}

/// The planners behind a port.
#[derive(Default)]
pub(super) struct Plans {
    links: Vec<PlanLink>,
    touched: Vec<bool>,
    pending: Slab<Pending>,
    /// The tokens of jobs whose cancels wait for a slot, by the number of the cancel. The answer to a job
    /// removes its entry, so there are never more entries than jobs.
    cancels: BTreeMap<u64, usize>,
    /// The number of the last cancel.
    last_cancel: u64,
    /// The cancels that were sent and not confirmed.
    cancels_in_flight: usize,
    /// The planner that got the last job that any planner may do.
    next: usize,
}

impl Plans {
    pub(super) fn add(&mut self, link: PlanLink) {
        self.links.push(link);
        self.touched.push(false);
    }

    pub(super) fn count(&self) -> usize {
        self.links.len()
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < PLANS_IN_FLIGHT_MAX
    }

    /// Sends a job to its planner, or to all planners.
    pub(super) fn submit(&mut self, tag: Tag, client: ClientKey, job: PlanJob) -> Result<(), NoRoom> {
        assert!(!self.links.is_empty(), "a job for planners, and there are none: ask `planner_count` first");
        if !self.has_room() {
            return Err(NoRoom);
        }
        let mut list = None;
        let planner = match job {
            PlanJob::GrowGroup(group, ..)
            | PlanJob::ShrinkGroup(group, _)
            | PlanJob::RemoveGroup(group)
            | PlanJob::GroupStatus(group) => self.keeper(group),
            PlanJob::CreateGroup(_) | PlanJob::Submit(_) => {
                self.next = (self.next + 1) % self.links.len();
                self.next
            }
            PlanJob::ListGroups(_, limit) => {
                list = Some(List { limit, left: self.links.len(), groups: Vec::new() });
                0
            }
        };
        let last = if list.is_some() { self.links.len() - 1 } else { planner };
        let token = self.pending.insert(Pending { tag, planner, client, cancel: Cancel::None, list });
        for planner in planner..last {
            self.send(planner, token, client, Some(job.clone()));
        }
        self.send(last, token, client, Some(job));
        Ok(())
    }

    /// Cancels the job of `tag` if it is still in flight and was not cancelled before.
    pub(super) fn cancel(&mut self, tag: Tag) {
        let number = self.last_cancel + 1;
        let found = self.pending.iter_mut().find(|(_, pending)| pending.tag == tag);
        if let Some((token, Pending { cancel, list: None, .. })) = found
            && *cancel == Cancel::None
        {
            *cancel = Cancel::Queued(number);
            self.last_cancel = number;
            self.cancels.insert(number, token);
            self.send_cancels();
        }
    }

    /// Sends cancels in order while there are slots.
    fn send_cancels(&mut self) {
        while self.cancels_in_flight < PLAN_CANCELS_IN_FLIGHT_MAX
            && let Some((_, token)) = self.cancels.pop_first()
        {
            let pending = &mut self.pending[token];
            pending.cancel = Cancel::Sent;
            let planner = pending.planner;
            let client = pending.client;
            self.cancels_in_flight += 1;
            self.send(planner, token, client, None);
        }
    }

    fn keeper(&self, group: GroupId) -> usize {
        usize::from(keeper_of(group, u16::try_from(self.links.len()).expect("PLANNERS_MAX fits u16")))
    }

    fn send(&mut self, planner: usize, token: usize, client: ClientKey, job: Option<PlanJob>) {
        let token = u32::try_from(token).expect("PLANS_IN_FLIGHT_MAX fits u32");
        let pushed = self.links[planner].jobs.push(PlanSubmission { token, client, job });
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
        let mut taken = 0;
        for planner in 0..self.links.len() {
            while let Some(answer) = self.links[planner].replies.pop() {
                taken += 1;
                let PlanAnswer::Reply { token, reply: answer } = answer else {
                    self.cancels_in_flight -= 1;
                    continue;
                };
                if let Some((tag, done)) = self.handle_answer(token as usize, answer) {
                    reply(tag, PortReply::Plan(Box::new(done)));
                }
            }
        }
        if !self.cancels.is_empty() {
            self.send_cancels();
        }
        taken
    }

    fn handle_answer(&mut self, token: usize, mut answer: PlanReply) -> Option<(Tag, PlanReply)> {
        let pending = self.pending.get_mut(token).expect("an answer belongs to a pending job");
        if let Some(List { limit, left, groups }) = &mut pending.list {
            groups.append(&mut reply_of(answer));
            *left -= 1;
            if *left > 0 {
                return None;
            }
            groups.sort_by_key(|group| group.id);
            groups.truncate(usize::from(*limit));
            answer = PlanReply::Groups(std::mem::take(groups));
        }
        let Pending { tag, cancel, .. } = self.pending.remove(token);
        if let Cancel::Queued(number) = cancel {
            // Otherwise, it would cancel the next job with this token.
            self.cancels.remove(&number);
        }
        Some((tag, answer))
    }

    pub(super) fn is_idle(&mut self) -> bool {
        self.links.iter_mut().all(|link| link.replies.is_empty())
    }
}
