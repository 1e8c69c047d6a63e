//! What a client can ask, kind by kind.

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

/// Requests that are answered at once.
macro_rules! calls {
    ($($(#[doc = $doc:literal])* $name:ident($request:ty) -> $reply:ty = $kind:ident;)*) => {
        impl Client {
            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// As [`call`](Self::call); what is wrong with the request itself is in the reply.
                pub async fn $name(&self, request: &$request) -> Result<$reply, ClientError> {
                    self.call::<kinds::$kind>(request).await
                }
            )*
        }
    };
}

/// Requests that may wait: with `MODE_WAIT_UNTIL` the call lasts until the reply to the wait is there.
macro_rules! waiting_calls {
    ($($(#[doc = $doc:literal])* $name:ident, $waiting:ident($request:ty) -> $reply:ty = $kind:ident;)*) => {
        impl Client {
            $(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// As [`call`](Self::call); what is wrong with the request itself is in the reply.
                pub async fn $name(&self, request: &$request) -> Result<$reply, ClientError> {
                    if request.mode == MODE_WAIT_UNTIL {
                        return self.$waiting(request).await?.1.await;
                    }
                    self.call::<kinds::$kind>(request).await
                }

                $(#[doc = $doc])*
                /// It waits: its sequence, by which it can be [cancelled](Self::cancel_wait), and its reply. It
                /// takes no room of the requests that are answered at once.
                ///
                /// # Errors
                /// When the connection is gone.
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
    /// One placement.
    place, place_waiting(PlaceRequest) -> PlaceReply = Place;
    /// Makes a group.
    create_group, create_group_waiting(CreateGroupRequest) -> GroupReply = CreateGroup;
    /// Adds bundles to a group.
    grow_group, grow_group_waiting(GrowGroupRequest) -> GroupReply = GrowGroup;
}

calls! {
    /// Records an allocation that was made elsewhere.
    adopt(AdoptRequest) -> PlaceReply = Adopt;
    /// Exchanges the capacity of some resources of a node.
    set_resources(SetResourcesRequest) -> NodesReply = SetResources;
    /// The books of a node.
    node_books(NodeBooksRequest) -> NodeBooksReply = NodeBooks;
    /// Keeps a node for an owner.
    reserve(ReserveRequest) -> ReserveReply = Reserve;
    /// Ends the reservation that an owner has on a node.
    end_reservation(EndReservationRequest) -> ReserveReply = EndReservation;
    /// Several placements, each decided on its own.
    place_batch(PlaceBatch) -> PlaceBatchReply = PlaceBatch;
    /// Ends several allocations.
    release_batch(ReleaseBatch) -> ReleaseBatchReply = ReleaseBatch;
    /// Registers nodes.
    add_nodes(NodesRequest) -> NodesReply = AddNodes;
    /// Gives nodes new capacity and labels.
    update_nodes(NodesRequest) -> NodesReply = UpdateNodes;
    /// Drains nodes, or takes that back.
    drain_nodes(DrainRequest) -> NodesReply = DrainNodes;
    /// Removes nodes.
    remove_nodes(RemoveRequest) -> NodesReply = RemoveNodes;
    /// One page of nodes, with their life, health and topology.
    list_nodes(ListRequest) -> ListReply = ListNodes;
    /// The status of the service.
    status(StatusRequest) -> StatusReply = Status;
    /// What a node's agent found.
    report(ReportRequest) -> ReportReply = Report;
    /// A node's agent lives.
    heartbeat(HeartbeatRequest) -> HeartbeatReply = Heartbeat;
    /// Takes bundles out of a group, with what runs in them.
    shrink_group(ShrinkGroupRequest) -> GroupReply = ShrinkGroup;
    /// A page of groups.
    list_groups(ListGroupsRequest) -> ListGroupsReply = ListGroups;
    /// A placement into a bundle.
    place_into(PlaceIntoRequest) -> PlaceReply = PlaceInto;
    /// Operations that are planned elsewhere: all of them, or as many as do not conflict.
    submit_statement(StatementRequest) -> StatementReply = SubmitStatement;
    /// A page of changes, or that there are none.
    follow_page(FollowRequest) -> FollowReply = Follow;
}

impl Client {
    /// Ends the wait of a placement or of a group; says whether it still waited. The reply to the wait says what
    /// became of it.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn cancel_wait(&self, sequence: u64) -> Result<CancelReply, ClientError> {
        self.call::<kinds::CancelWait>(&CancelRequest { sequence }).await
    }

    /// Ends an allocation.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn release(&self, allocation: WireAllocation) -> Result<ReleaseReply, ClientError> {
        self.call::<kinds::Release>(&ReleaseRequest { allocation }).await
    }

    /// The state of a group.
    ///
    /// # Errors
    /// As [`call`](Self::call); that there is none is in the reply.
    pub async fn group_status(&self, group: WireGroup) -> Result<GroupReply, ClientError> {
        self.call::<kinds::GroupStatus>(&GroupStatusRequest { group }).await
    }

    /// Ends a group, with what runs in its bundles.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn remove_group(&self, group: WireGroup) -> Result<RemoveGroupReply, ClientError> {
        self.call::<kinds::RemoveGroup>(&RemoveGroupRequest { group }).await
    }
}
