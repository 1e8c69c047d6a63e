//! The planners behind a port: routes jobs to them and combines their replies.
//!
//! A job may take two slots of each ring: one for itself, and one for its cancel. So a job that is cancelled is
//! answered when its planner has also taken the cancel.

use std::sync::Arc;

use slab::Slab;

use super::port::{NoRoom, PortReply, Tag};
use crate::group::{ClientKey, GroupView, PlanJob, PlanReply, keeper_of};
use crate::ids::GroupId;
use crate::limits::PLANS_IN_FLIGHT_MAX;
use crate::link::{Consumer, Doorbell, Producer};
use crate::reply::reply_of;
use crate::state::Origin;

/// A job that is sent to a planner.
pub(crate) struct PlanSubmission {
    pub(crate) token: u32,
    pub(crate) client: ClientKey,
    /// The request of a client session that asks for the job, if it is one.
    pub(crate) origin: Option<Origin>,
    /// `None` cancels the job with the same token.
    pub(crate) job: Option<PlanJob>,
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
    /// The number of awaited answers.
    left: usize,
    reply: Option<PlanReply>,
    list: Option<List>,
}

/// A list of groups, to which every planner contributes a page.
struct List {
    limit: u16,
    groups: Vec<GroupView>,
}

/// The planners behind a port.
#[derive(Default)]
pub(super) struct Plans {
    links: Vec<PlanLink>,
    touched: Vec<bool>,
    pending: Slab<Pending>,
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
    pub(super) fn submit(
        &mut self,
        origin: Option<Origin>,
        tag: Tag,
        client: ClientKey,
        job: PlanJob,
    ) -> Result<(), NoRoom> {
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
                list = Some(List { limit, groups: Vec::new() });
                0
            }
        };
        let last = if list.is_some() { self.links.len() - 1 } else { planner };
        let left = last + 1 - planner;
        let is_cancelled = false;
        let reply = None;
        let token = self.pending.insert(Pending { tag, planner, client, is_cancelled, left, reply, list });
        for planner in planner..last {
            self.send(planner, token, client, None, Some(job.clone()));
        }
        self.send(last, token, client, origin, Some(job));
        Ok(())
    }

    /// Cancels the job of `tag` if it is still in flight and was not cancelled before.
    pub(super) fn cancel(&mut self, tag: Tag) {
        let found = self.pending.iter_mut().find(|(_, pending)| pending.tag == tag);
        if let Some((token, pending)) = found
            && !pending.is_cancelled
            && pending.list.is_none()
        {
            pending.is_cancelled = true;
            pending.left += 1;
            let planner = pending.planner;
            let client = pending.client;
            self.send(planner, token, client, None, None);
        }
    }

    fn keeper(&self, group: GroupId) -> usize {
        usize::from(keeper_of(group, u16::try_from(self.links.len()).expect("PLANNERS_MAX fits u16")))
    }

    fn send(
        &mut self,
        planner: usize,
        token: usize,
        client: ClientKey,
        origin: Option<Origin>,
        job: Option<PlanJob>,
    ) {
        let token = u32::try_from(token).expect("PLANS_IN_FLIGHT_MAX fits u32");
        let pushed = self.links[planner].jobs.push(PlanSubmission { token, client, origin, job });
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
                if let Some((tag, done)) = self.handle_answer(answer) {
                    reply(tag, PortReply::Plan(Box::new(done)));
                }
            }
        }
        taken
    }

    fn handle_answer(&mut self, PlanAnswer { token, reply }: PlanAnswer) -> Option<(Tag, PlanReply)> {
        let token = token as usize;
        let pending = self.pending.get_mut(token).expect("an answer belongs to a pending job");
        pending.left -= 1;
        match (reply, &mut pending.list) {
            (Some(page), Some(list)) => list.groups.append(&mut reply_of(page)),
            (Some(reply), None) => pending.reply = Some(reply),
            (None, _) => {}
        }
        if pending.left > 0 {
            return None;
        }
        let Pending { tag, reply, list, .. } = self.pending.remove(token);
        let of_list = list.map(|List { limit, mut groups }| {
            groups.sort_by_key(|group| group.id);
            groups.truncate(usize::from(limit));
            PlanReply::Groups(groups)
        });
        Some((tag, of_list.or(reply).expect("each job is answered")))
    }

    pub(super) fn is_idle(&mut self) -> bool {
        self.links.iter_mut().all(|link| link.replies.is_empty())
    }
}
