//! Node agents at the registrar: reports, heartbeats, and nodes whose agents are silent.

use tracing::{info, warn};
use wharf_core::ids::{NodeId, PartitionId};
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::node::{AgentReport, LifeEvent, NodeState};
use wharf_core::registrar::Reported;
use wharf_core::router::PortRequest;
use wharf_core::shard::{Command, NodeChange, NodeRejection, NodeReply};
use wharf_core::time::Time;

use super::{Job, JobKind, RegistrarReply, RegistrarService};
use crate::convert::{agent_report, check_custom};
use crate::protocol::{Fault, HeartbeatReply, HeartbeatRequest, Reason, ReportReply, ReportRequest};
use crate::session::tags::tag;

fn millis(nanos: u64) -> u32 {
    u32::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

/// The commands that a report needs.
enum Plan {
    /// The node, and the commands in order.
    File(NodeId, Vec<(PartitionId, Command)>),
    /// A lost node has the name and must be removed first.
    Remove(NodeId, PartitionId),
}

/// The report of a machine whose name belongs to a lost node, while that node is being removed.
pub(super) struct Replacing {
    request: ReportRequest,
    /// The removed node, and the number of allocations that ended with it.
    removed: Option<(NodeId, u32)>,
    /// The time at which the report is retried.
    due: Time,
}

/// The delay in ns before a removal is retried that a statement blocked. Holds last milliseconds, and end at
/// the latest with the statement's deadline.
pub(super) const REMOVE_AGAIN_NS: u64 = 10_000_000;

impl<T> RegistrarService<T> {
    fn refuse_report(&mut self, fault: Fault, asker: T) {
        let refused = ReportReply { reason: fault.reason, fault: Some(fault), ..ReportReply::default() };
        self.answer(asker, RegistrarReply::Report(refused));
    }

    pub(super) fn handle_report(&mut self, request: ReportRequest, reply: T) {
        self.file_report(Replacing { request, removed: None, due: Time::default() }, reply);
    }

    /// Retries reports that are due.
    pub(super) fn handle_replacing(&mut self) {
        if self.replacing.is_empty() {
            return;
        }
        let now = self.now;
        if self.stops {
            for (_, reply) in std::mem::take(&mut self.replacing).into_values() {
                // No other command may run during the export of a stop. The agent reports again to the next
                // start.
                let fault = Fault::new(Reason::ShuttingDown, "the service is stopping: report again");
                self.refuse_report(fault, reply);
            }
        }
        for _ in 0..NODES_PER_MESSAGE_MAX / 4 {
            match self.replacing.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let (report, reply) = first.remove();
                    self.file_report(report, reply);
                }
                _ => return,
            }
        }
    }

    /// Schedules a report for its due time.
    pub(super) fn replace_later(&mut self, report: Replacing, reply: Option<T>) {
        self.replaced += 1;
        let key = (report.due, self.replaced);
        self.replacing.extend(reply.map(|reply| (key, (report, reply))));
    }

    fn file_report(&mut self, replacing: Replacing, reply: T) {
        let version = replacing.request.version;
        let removed = replacing.removed;
        let (node, commands) = match self.plan_report(replacing.request.clone()) {
            Ok(Plan::File(node, commands)) => (node, commands),
            Ok(Plan::Remove(old, partition)) => {
                let gone = Command::RemoveNode { node: old, force: true };
                self.start(JobKind::Replace(Box::new(replacing)), Some(reply), vec![(partition, gone)]);
                return;
            }
            Err(fault) => return self.refuse_report(fault, reply),
        };
        // Publish before any shard can place on a new node, so that a reply can resolve the node's name.
        self.publish();
        let now = self.now;
        let heartbeats = self.registrar.heartbeats();
        heartbeats.reported(node, version, now);
        let answer = ReportReply {
            node: node.0,
            interval_ms: millis(heartbeats.interval()),
            lost_after_ms: millis(heartbeats.lost_after()),
            replaced: removed.map_or(0, |(node, _)| node.0),
            allocations_ended: removed.map_or(0, |(_, ended)| ended),
            ..ReportReply::default()
        };
        if let Some((old, ended)) = removed {
            let name = self.registrar.name(node).unwrap_or_default();
            warn!(%old, %name, new = %node, allocations_ended = ended, "another machine has this node's name now: the old node is gone, its allocations ended");
        }
        self.start(JobKind::Report(answer), Some(reply), commands);
    }

    fn plan_report(&mut self, mut request: ReportRequest) -> Result<Plan, Fault> {
        let registrar = &mut self.registrar;
        // Check without the custom resources first. A refused report must not add kinds to the registry, nor
        // may a report that must wait until a lost node is removed.
        let custom = std::mem::take(&mut request.node.custom);
        let bare = agent_report(request.clone(), registrar.resources_mut())?;
        let occupied = registrar.check_report(&bare.spec)?;
        if let Some((old, partition)) = occupied {
            check_custom(&custom, registrar.resources_mut())?;
            return Ok(Plan::Remove(old, partition));
        }
        request.node.custom = custom;
        let report = agent_report(request, registrar.resources_mut())?;
        let reported = registrar.report(report.spec.clone())?;
        let filed = |node, spec| Command::Report(node, Box::new(AgentReport { spec, ..report.clone() }));
        Ok(match reported {
            Reported::Known(node, partition, spec) => Plan::File(node, vec![(partition, filed(node, spec))]),
            Reported::New(new) => {
                let node = new.id;
                let partition = new.partition;
                let filed = filed(new.id, new.spec.clone());
                Plan::File(node, vec![(partition, registrar.join_command(new)), (partition, filed)])
            }
            Reported::Occupied(old, partition) => Plan::Remove(old, partition),
        })
    }

    pub(super) fn handle_heartbeat(&mut self, request: HeartbeatRequest, reply: T) {
        let node = NodeId(request.node);
        let now = self.now;
        let heartbeats = self.registrar.heartbeats();
        let heard = heartbeats.beat(node, request.version, now);
        let answer = HeartbeatReply {
            reason: if heard.is_some() { Reason::Done } else { Reason::UnknownNode }.into(),
            report_again: heard.is_none_or(|heard| heard.report_again),
            interval_ms: millis(heartbeats.interval()),
        };
        let partition = self.registrar.partition(node);
        match (heard.is_some_and(|heard| heard.tell), partition) {
            (true, Some(partition)) => {
                let command = Command::Life(node, LifeEvent::Beat);
                self.start(JobKind::Heartbeat(answer), Some(reply), vec![(partition, command)]);
            }
            _ => {
                self.answer(reply, RegistrarReply::Heartbeat(answer));
            }
        }
    }

    /// Marks nodes as lost whose agents were silent for too long.
    pub(super) fn lose_silent(&mut self) {
        let now = self.now;
        let registrar = &mut self.registrar;
        let lost = registrar.heartbeats().take_lost(now, NODES_PER_MESSAGE_MAX);
        if lost.is_empty() {
            return;
        }
        let located = lost.into_iter().filter_map(|node| Some((registrar.partition(node)?, node)));
        let commands = located.map(|(partition, node)| (partition, Command::Life(node, LifeEvent::Lose)));
        let commands = commands.collect();
        self.start(JobKind::Lost, None, commands);
    }

    /// Returns when an agent's silence becomes too long, or a report is to be looked at again.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Time> {
        if self.stops {
            return None;
        }
        let again = self.replacing.keys().next().map(|&(due, _)| due);
        again.into_iter().chain(self.registrar.heartbeats().next_deadline()).min()
    }

    /// Sends one part per command, in order.
    pub(super) fn start(
        &mut self,
        kind: JobKind<T>,
        reply: Option<T>,
        commands: Vec<(PartitionId, Command)>,
    ) {
        let key = self.jobs.insert(Job { reply, left: commands.len(), kind });
        for (part, (partition, command)) in commands.into_iter().enumerate() {
            self.send(tag(key, part), PortRequest::Partition(partition, command));
        }
        self.port.flush();
    }

    /// Records a shard's answer to one part of a report, heartbeat or loss. Returns whether a node is gone.
    pub(super) fn handle_agent_change(&mut self, key: usize, change: NodeReply) -> bool {
        let name = |service: &Self, node| service.registrar.name(node).unwrap_or_default().to_owned();
        let now = self.now;
        match (&mut self.jobs[key].kind, change) {
            (JobKind::Replace(report), Ok(NodeChange::Removed { node, allocations_ended, version })) => {
                report.removed = Some((node, allocations_ended));
                self.registrar.forget(node, version);
                return true;
            }
            (JobKind::Replace(report), Err(NodeRejection::Held(..))) => {
                report.due = now.plus_nanos(self.remove_again_ns);
            }
            (JobKind::Lost, Ok(NodeChange::State(node, NodeState::Lost { .. }))) => {
                let seconds = self.registrar.heartbeats().lost_after() / 1_000_000_000;
                let name = name(self, node);
                warn!(%node, %name, seconds, "this node is lost: its agent was silent for too long");
            }
            (JobKind::Report(_) | JobKind::Heartbeat(_), Ok(NodeChange::State(node, state))) => {
                info!(%node, name = %name(self, node), state = state.name(), "heard of this node's agent");
            }
            // The node was removed meanwhile. The next heartbeat is told so.
            (JobKind::Report(reply), Err(rejection)) => {
                let fault = Fault::from(rejection);
                (reply.reason, reply.fault) = (fault.reason, Some(fault));
            }
            (JobKind::Heartbeat(reply), Err(_)) => {
                reply.reason = Reason::UnknownNode.into();
                reply.report_again = true;
            }
            // If another removal was faster, its answer already updated the registrar. The id may now belong to a node
            // that came back, so nothing is forgotten here.
            _ => {}
        }
        false
    }
}

#[cfg(test)]
mod tests;
