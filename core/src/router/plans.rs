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

/// A job that is sent to a planner.
pub(crate) struct PlanSubmission {
    pub(crate) token: u32,
    pub(crate) client: ClientKey,
    pub(crate) job: PlanJob,
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

enum Pending {
    /// A job of one planner.
    One { tag: Tag, planner: usize, client: ClientKey, cancel: Cancel },
    /// A page of groups, to which every planner contributes.
    Page { tag: Tag, limit: u16, left: usize, groups: Vec<GroupView> },
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
        if let PlanJob::ListGroups(_, limit) = job {
            let left = self.links.len();
            let groups = Vec::new();
            let token = self.pending.insert(Pending::Page { tag, limit, left, groups });
            for planner in 0..self.links.len() {
                self.send(planner, token, client, job.clone());
            }
            return Ok(());
        }
        let planner = match &job {
            PlanJob::GrowGroup(group, ..)
            | PlanJob::ShrinkGroup(group, _)
            | PlanJob::RemoveGroup(group)
            | PlanJob::GroupStatus(group) => self.keeper(*group),
            PlanJob::Cancel => panic!("a job is taken back by `cancel_plan`"),
            PlanJob::CreateGroup(_) | PlanJob::Submit(_) | PlanJob::ListGroups(..) => {
                self.next = (self.next + 1) % self.links.len();
                self.next
            }
        };
        let token = self.pending.insert(Pending::One { tag, planner, client, cancel: Cancel::None });
        self.send(planner, token, client, job);
        Ok(())
    }

    /// Cancels the job of `tag` if it is still in flight and was not cancelled before.
    pub(super) fn cancel(&mut self, tag: Tag) {
        let number = self.last_cancel + 1;
        let found = self.pending.iter_mut().find_map(|(token, pending)| match pending {
            Pending::One { tag: of, cancel, .. } if *of == tag => Some((token, cancel)),
            _ => None,
        });
        if let Some((token, cancel @ Cancel::None)) = found {
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
            let Pending::One { planner, client, cancel, .. } = &mut self.pending[token] else {
                panic!("a page of groups is not taken back")
            };
            *cancel = Cancel::Sent;
            let planner = *planner;
            let client = *client;
            self.cancels_in_flight += 1;
            self.send(planner, token, client, PlanJob::Cancel);
        }
    }

    fn keeper(&self, group: GroupId) -> usize {
        usize::from(keeper_of(group, u16::try_from(self.links.len()).expect("PLANNERS_MAX fits u16")))
    }

    fn send(&mut self, planner: usize, token: usize, client: ClientKey, job: PlanJob) {
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

    fn handle_answer(&mut self, token: usize, answer: PlanReply) -> Option<(Tag, PlanReply)> {
        let pending = self.pending.get_mut(token).expect("an answer belongs to a pending job");
        let Pending::Page { left, groups, .. } = pending else {
            let Pending::One { tag, cancel, .. } = self.pending.remove(token) else {
                unreachable!("just seen")
            };
            if let Cancel::Queued(number) = cancel {
                // Otherwise, it would cancel the next job with this token.
                self.cancels.remove(&number);
            }
            return Some((tag, answer));
        };
        let PlanReply::Groups(page) = answer else { panic!("a page of groups was answered with {answer:?}") };
        groups.extend(page);
        *left -= 1;
        if *left > 0 {
            return None;
        }
        let Pending::Page { tag, limit, mut groups, .. } = self.pending.remove(token) else {
            unreachable!("just seen")
        };
        groups.sort_by_key(|group| group.id);
        groups.truncate(usize::from(limit));
        Some((tag, PlanReply::Groups(groups)))
    }

    pub(super) fn is_idle(&mut self) -> bool {
        self.links.iter_mut().all(|link| link.replies.is_empty())
    }
}
