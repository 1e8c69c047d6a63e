//! The client's requests, one method per kind.

use super::{Client, ClientError};
use crate::protocol::{
    CancelReply, CancelRequest, GroupReply, GroupStatusRequest, MODE_WAIT_UNTIL, Message, ReleaseReply,
    ReleaseRequest, RemoveGroupReply, RemoveGroupRequest, WireAllocation, WireGroup, kinds,
};

/// Defines requests. Those marked `waits` may wait: with `MODE_WAIT_UNTIL`, the call lasts until the wait is answered.
macro_rules! calls {
    ($($(#[doc = $doc:literal])* $name:ident = $kind:ident $($waits:ident)?;)*) => {
        impl Client {
            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// Same as [`call`](Self::call). A fault in the request itself is part of the reply.
                pub async fn $name(
                    &self,
                    request: &<kinds::$kind as Message>::Request,
                ) -> Result<<kinds::$kind as Message>::Reply, ClientError> {
                    $(calls!(@$waits);
                    if request.mode == MODE_WAIT_UNTIL {
                        return self.call_waiting::<kinds::$kind>(request).await?.1.await;
                    })?
                    self.call::<kinds::$kind>(request).await
                }
            )*
        }
    };
    (@waits) => {};
}

calls! {
    /// Places one request.
    place = Place waits;
    /// Creates a group.
    create_group = CreateGroup waits;
    /// Adds bundles to a group.
    grow_group = GrowGroup waits;
    /// Adopts an allocation that another system made.
    adopt = Adopt;
    /// Replaces the capacity of some resources of a node.
    set_resources = SetResources;
    /// Returns the books of a node.
    node_books = NodeBooks;
    /// Reserves a node for an owner.
    reserve = Reserve;
    /// Ends an owner's reservation on a node.
    end_reservation = EndReservation;
    /// Places several requests, each decided on its own.
    place_batch = PlaceBatch;
    /// Ends several allocations.
    release_batch = ReleaseBatch;
    /// Renews leases.
    renew = Renew;
    /// Registers nodes.
    add_nodes = AddNodes;
    /// Updates capacity and labels of nodes.
    update_nodes = UpdateNodes;
    /// Drains nodes, or undoes it.
    drain_nodes = DrainNodes;
    /// Removes nodes.
    remove_nodes = RemoveNodes;
    /// Lists one page of nodes, with their state, health and topology.
    list_nodes = ListNodes;
    /// Returns the status of the service.
    status = Status;
    /// Registers or updates a node with the findings of its agent.
    report = Report;
    /// Tells that a node's agent is alive.
    heartbeat = Heartbeat;
    /// Removes bundles from a group, with the allocations inside them.
    shrink_group = ShrinkGroup;
    /// Lists a page of groups.
    list_groups = ListGroups;
    /// Places into a bundle.
    place_into = PlaceInto;
    /// Submits operations that an external scheduler planned. All of them are committed, or those that do not
    /// conflict.
    submit_statement = SubmitStatement;
    /// Returns a page of an export of the store.
    export = Export;
    /// Returns a page of changes, or that nothing changed.
    follow_page = Follow;
    /// Returns a page of events, or that there is none yet.
    events_page = Events;
    /// Makes a queue, or changes it.
    set_queue = SetQueue;
    /// Removes a queue.
    remove_queue = RemoveQueue;
    /// Lists a page of queues.
    list_queues = ListQueues;
    /// Makes a priority class, or changes it.
    set_priority_class = SetPriorityClass;
    /// Removes a priority class.
    remove_priority_class = RemovePriorityClass;
    /// Lists a page of priority classes.
    list_priority_classes = ListPriorityClasses;
    /// Submits a job.
    submit_job = SubmitJob;
    /// Ends a job.
    cancel_job = CancelJob;
    /// Returns a job with a page of its tasks.
    job_status = JobStatus;
    /// Lists a page of jobs.
    list_jobs = ListJobs;
    /// Tells what became of tasks.
    report_tasks = ReportTasks;
    /// Explains why a job or a task waits.
    explain_job = ExplainJob;
    /// Explains why a placement or a group waits.
    explain_wait = ExplainWait;
    /// Returns which nodes to launch for all that waits, which to remove, and what would start.
    plan_nodes = PlanNodes;
}

impl Client {
    /// Cancels the wait of a placement or group. Returns whether it was still waiting. The reply to the wait
    /// tells its outcome.
    ///
    /// # Errors
    /// Same as [`call`](Self::call).
    pub async fn cancel_wait(&self, sequence: u64) -> Result<CancelReply, ClientError> {
        self.call::<kinds::CancelWait>(&CancelRequest { sequence }).await
    }

    /// Ends an allocation.
    ///
    /// # Errors
    /// Same as [`call`](Self::call).
    pub async fn release(&self, allocation: WireAllocation) -> Result<ReleaseReply, ClientError> {
        self.call::<kinds::Release>(&ReleaseRequest { allocation }).await
    }

    /// Returns the state of a group.
    ///
    /// # Errors
    /// Same as [`call`](Self::call). If the group does not exist, the reply says so.
    pub async fn group_status(&self, group: WireGroup) -> Result<GroupReply, ClientError> {
        self.call::<kinds::GroupStatus>(&GroupStatusRequest { group }).await
    }

    /// Removes a group, with the allocations inside its bundles.
    ///
    /// # Errors
    /// Same as [`call`](Self::call).
    pub async fn remove_group(&self, group: WireGroup) -> Result<RemoveGroupReply, ClientError> {
        self.call::<kinds::RemoveGroup>(&RemoveGroupRequest { group }).await
    }
}
