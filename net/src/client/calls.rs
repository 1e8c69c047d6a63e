//! The client's requests, one method per kind.

use super::{Client, ClientError};
use crate::protocol::{
    AdoptRequest, CancelReply, CancelRequest, CreateGroupRequest, DrainRequest, EndReservationRequest,
    FollowReply, FollowRequest, GroupReply, GroupStatusRequest, GrowGroupRequest, HeartbeatReply,
    HeartbeatRequest, ListGroupsReply, ListGroupsRequest, ListReply, ListRequest, MODE_WAIT_UNTIL,
    NodeBooksReply, NodeBooksRequest, NodesReply, NodesRequest, PlaceBatch, PlaceBatchReply,
    PlaceIntoRequest, PlaceReply, PlaceRequest, ReleaseBatch, ReleaseBatchReply, ReleaseReply,
    ReleaseRequest, RemoveGroupReply, RemoveGroupRequest, RemoveRequest, ReportReply, ReportRequest,
    ReserveReply, ReserveRequest, SetResourcesRequest, ShrinkGroupRequest, StatementReply, StatementRequest,
    StatusReply, StatusRequest, WireAllocation, WireGroup, kinds,
};

/// Defines requests that are answered at once.
macro_rules! calls {
    ($($(#[doc = $doc:literal])* $name:ident($request:ty) -> $reply:ty = $kind:ident;)*) => {
        impl Client {
            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// Same as [`call`](Self::call). A fault in the request itself is part of the reply.
                pub async fn $name(&self, request: &$request) -> Result<$reply, ClientError> {
                    self.call::<kinds::$kind>(request).await
                }
            )*
        }
    };
}

/// Defines requests that may wait. With `MODE_WAIT_UNTIL`, the call lasts until the wait is answered.
macro_rules! waiting_calls {
    ($($(#[doc = $doc:literal])* $name:ident, $waiting:ident($request:ty) -> $reply:ty = $kind:ident;)*) => {
        impl Client {
            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// Same as [`call`](Self::call). A fault in the request itself is part of the reply.
                pub async fn $name(&self, request: &$request) -> Result<$reply, ClientError> {
                    if request.mode == MODE_WAIT_UNTIL {
                        return self.$waiting(request).await?.1.await;
                    }
                    self.call::<kinds::$kind>(request).await
                }

                $(#[doc = $doc])*
                ///
                /// The request waits. Returns its sequence, by which it can be
                /// [cancelled](Self::cancel_wait), and its reply. It takes no room from requests that are
                /// answered at once.
                ///
                /// # Errors
                /// Fails if the connection is gone.
                pub async fn $waiting(
                    &self,
                    request: &$request,
                ) -> Result<(u64, impl Future<Output = Result<$reply, ClientError>> + use<>), ClientError> {
                    self.call_waiting::<kinds::$kind>(request).await
                }
            )*
        }
    };
}

waiting_calls! {
    /// Places one request.
    place, place_waiting(PlaceRequest) -> PlaceReply = Place;
    /// Creates a group.
    create_group, create_group_waiting(CreateGroupRequest) -> GroupReply = CreateGroup;
    /// Adds bundles to a group.
    grow_group, grow_group_waiting(GrowGroupRequest) -> GroupReply = GrowGroup;
}

calls! {
    /// Adopts an allocation that another system made.
    adopt(AdoptRequest) -> PlaceReply = Adopt;
    /// Replaces the capacity of some resources of a node.
    set_resources(SetResourcesRequest) -> NodesReply = SetResources;
    /// Returns the books of a node.
    node_books(NodeBooksRequest) -> NodeBooksReply = NodeBooks;
    /// Reserves a node for an owner.
    reserve(ReserveRequest) -> ReserveReply = Reserve;
    /// Ends an owner's reservation on a node.
    end_reservation(EndReservationRequest) -> ReserveReply = EndReservation;
    /// Places several requests, each decided on its own.
    place_batch(PlaceBatch) -> PlaceBatchReply = PlaceBatch;
    /// Ends several allocations.
    release_batch(ReleaseBatch) -> ReleaseBatchReply = ReleaseBatch;
    /// Registers nodes.
    add_nodes(NodesRequest) -> NodesReply = AddNodes;
    /// Updates capacity and labels of nodes.
    update_nodes(NodesRequest) -> NodesReply = UpdateNodes;
    /// Drains nodes, or undoes it.
    drain_nodes(DrainRequest) -> NodesReply = DrainNodes;
    /// Removes nodes.
    remove_nodes(RemoveRequest) -> NodesReply = RemoveNodes;
    /// Lists one page of nodes, with their state, health and topology.
    list_nodes(ListRequest) -> ListReply = ListNodes;
    /// Returns the status of the service.
    status(StatusRequest) -> StatusReply = Status;
    /// Registers or updates a node with the findings of its agent.
    report(ReportRequest) -> ReportReply = Report;
    /// Tells that a node's agent is alive.
    heartbeat(HeartbeatRequest) -> HeartbeatReply = Heartbeat;
    /// Removes bundles from a group, with the allocations inside them.
    shrink_group(ShrinkGroupRequest) -> GroupReply = ShrinkGroup;
    /// Lists a page of groups.
    list_groups(ListGroupsRequest) -> ListGroupsReply = ListGroups;
    /// Places into a bundle.
    place_into(PlaceIntoRequest) -> PlaceReply = PlaceInto;
    /// Submits operations that an external scheduler planned. All of them are committed, or those that do not
    /// conflict.
    submit_statement(StatementRequest) -> StatementReply = SubmitStatement;
    /// Returns a page of changes, or that nothing changed.
    follow_page(FollowRequest) -> FollowReply = Follow;
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
