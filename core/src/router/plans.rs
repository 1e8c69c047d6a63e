//! The planners behind a port: which is asked, and what they answer.

use std::sync::Arc;

use slab::Slab;

use super::port::{NoRoom, PortReply, Tag};
use crate::ids::GroupId;
use crate::limits::PLANS_IN_FLIGHT_MAX;
use crate::planner::{ClientKey, GroupView, PlanAnswer, PlanJob, PlanReply, PlanSubmission, keeper_of};
use crate::ring::{Consumer, Doorbell, Producer};

/// The rings between a port and one planner, and the bell of the planner.
pub(crate) struct PlanLink {
    pub(crate) jobs: Producer<PlanSubmission>,
    pub(crate) replies: Consumer<PlanAnswer>,
    pub(crate) bell: Arc<Doorbell>,
}

enum Pending {
    /// With the planner that was asked, and for whom.
    One(Tag, usize, ClientKey),
    /// A page of groups, of which every planner has some.
    Page { tag: Tag, limit: u16, left: usize, groups: Vec<GroupView> },
}

/// The planners, as a port sees them.
#[derive(Default)]
pub(super) struct Plans {
    links: Vec<PlanLink>,
    touched: Vec<bool>,
    pending: Slab<Pending>,
    /// The planner that is given the next job which any may do.
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

    /// Sends a job on its way.
    pub(super) fn submit(&mut self, tag: Tag, client: ClientKey, job: PlanJob) -> Result<(), NoRoom> {
        assert!(!self.links.is_empty(), "a job for planners, and there are none: ask `planner_count` first");
        if !self.has_room() {
            return Err(NoRoom);
        }
        if let PlanJob::ListGroups(_, limit) = job {
            let (left, groups) = (self.links.len(), Vec::new());
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
            PlanJob::CreateGroup(_) | PlanJob::Submit(_) | PlanJob::ListGroups(..) | PlanJob::Cancel => {
                self.next = (self.next + 1) % self.links.len();
                self.next
            }
        };
        let token = self.pending.insert(Pending::One(tag, planner, client));
        self.send(planner, token, client, job);
        Ok(())
    }

    /// Takes back the job of `tag`, a group that waits, if it is still under way.
    pub(super) fn cancel(&mut self, tag: Tag) {
        let mut pending = self.pending.iter();
        let found = pending.find_map(|(token, pending)| match pending {
            Pending::One(of, planner, client) if *of == tag => Some((token, *planner, *client)),
            _ => None,
        });
        if let Some((token, planner, client)) = found {
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
            while let Some(PlanAnswer { token, reply: answer }) = self.links[planner].replies.pop() {
                taken += 1;
                if let Some((tag, done)) = self.handle_answer(token as usize, answer) {
                    reply(tag, PortReply::Plan(Box::new(done)));
                }
            }
        }
        taken
    }

    fn handle_answer(&mut self, token: usize, answer: PlanReply) -> Option<(Tag, PlanReply)> {
        let pending = self.pending.get_mut(token).expect("an answer belongs to a pending job");
        let Pending::Page { left, groups, .. } = pending else {
            let Pending::One(tag, ..) = self.pending.remove(token) else { unreachable!("just seen") };
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
