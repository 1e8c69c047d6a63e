//! What a client can ask, kind by kind.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::pending::Destination;
use super::{Client, ClientError};
use crate::codec::decode_body;
use crate::protocol::{
    AdoptRequest, CancelReply, CancelRequest, DrainRequest, EndReservationRequest, HeartbeatReply,
    HeartbeatRequest, Kind, ListReply, ListRequest, MODE_WAIT_UNTIL, NodeBooksReply, NodeBooksRequest,
    NodesReply, NodesRequest, PlaceBatch, PlaceBatchReply, PlaceReply, PlaceRequest, ReleaseBatch,
    ReleaseBatchReply, ReleaseReply, ReleaseRequest, RemoveRequest, ReportReply, ReportRequest, ReserveReply,
    ReserveRequest, SetResourcesRequest, StatusReply, StatusRequest, WireAllocation,
};

impl Client {
    /// One placement.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the placement itself stands in the reply.
    pub async fn place(&self, request: &PlaceRequest) -> Result<PlaceReply, ClientError> {
        if request.mode == MODE_WAIT_UNTIL {
            return self.place_waiting(request).await?.1.await;
        }
        self.call(Kind::Place, request).await
    }

    /// One placement that waits: its sequence, by which it can be cancelled, and its reply. It
    /// takes no room of the requests that are answered at once.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn place_waiting(
        &self,
        request: &PlaceRequest,
    ) -> Result<(u64, impl Future<Output = Result<PlaceReply, ClientError>> + use<>), ClientError> {
        self.enter_waiting(Kind::Place, request).await
    }

    pub(super) async fn enter_waiting<Q: Serialize, R: DeserializeOwned>(
        &self,
        kind: Kind,
        request: &Q,
    ) -> Result<(u64, impl Future<Output = Result<R, ClientError>> + use<Q, R>), ClientError> {
        let (sender, receiver) = oneshot::channel();
        let sequence = self.enter(kind, request, Destination::Waiting(sender)).await?;
        let reply = async move {
            let closed = |_| ClientError::ConnectionLost("the client was closed".into());
            Ok(decode_body(&receiver.await.map_err(closed)??)?.0)
        };
        Ok((sequence, reply))
    }

    /// Ends the wait of a placement or of a group; whether it waited still. Its own reply says what became of it.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn cancel_wait(&self, sequence: u64) -> Result<CancelReply, ClientError> {
        self.call(Kind::CancelWait, &CancelRequest { sequence }).await
    }

    /// Records an allocation that was made elsewhere.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the adoption itself stands in the reply.
    pub async fn adopt(&self, request: &AdoptRequest) -> Result<PlaceReply, ClientError> {
        self.call(Kind::Adopt, request).await
    }

    /// Exchanges the capacity of some resources of a node.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn set_resources(&self, request: &SetResourcesRequest) -> Result<NodesReply, ClientError> {
        self.call(Kind::SetResources, request).await
    }

    /// The books of a node.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn node_books(&self, request: &NodeBooksRequest) -> Result<NodeBooksReply, ClientError> {
        self.call(Kind::NodeBooks, request).await
    }

    /// Keeps a node for an owner.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the reservation itself stands in the reply.
    pub async fn reserve(&self, request: &ReserveRequest) -> Result<ReserveReply, ClientError> {
        self.call(Kind::Reserve, request).await
    }

    /// Ends the reservation that an owner has on a node.
    ///
    /// # Errors
    /// As [`call`](Self::call); that there is none stands in the reply.
    pub async fn end_reservation(
        &self,
        request: &EndReservationRequest,
    ) -> Result<ReserveReply, ClientError> {
        self.call(Kind::EndReservation, request).await
    }

    /// Several placements, each decided on its own.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn place_batch(&self, batch: &PlaceBatch) -> Result<PlaceBatchReply, ClientError> {
        self.call(Kind::PlaceBatch, batch).await
    }

    /// Ends an allocation.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn release(&self, allocation: WireAllocation) -> Result<ReleaseReply, ClientError> {
        self.call(Kind::Release, &ReleaseRequest { allocation }).await
    }

    /// Ends several allocations.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn release_batch(&self, batch: &ReleaseBatch) -> Result<ReleaseBatchReply, ClientError> {
        self.call(Kind::ReleaseBatch, batch).await
    }

    /// Registers nodes.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn add_nodes(&self, request: &NodesRequest) -> Result<NodesReply, ClientError> {
        self.call(Kind::AddNodes, request).await
    }

    /// Gives nodes new capacity and labels.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn update_nodes(&self, request: &NodesRequest) -> Result<NodesReply, ClientError> {
        self.call(Kind::UpdateNodes, request).await
    }

    /// Drains nodes, or takes that back.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn drain_nodes(&self, request: &DrainRequest) -> Result<NodesReply, ClientError> {
        self.call(Kind::DrainNodes, request).await
    }

    /// Removes nodes.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn remove_nodes(&self, request: &RemoveRequest) -> Result<NodesReply, ClientError> {
        self.call(Kind::RemoveNodes, request).await
    }

    /// One page of nodes.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn list_nodes(&self, request: &ListRequest) -> Result<ListReply, ClientError> {
        self.call(Kind::ListNodes, request).await
    }

    /// The status of the service.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn status(&self, request: &StatusRequest) -> Result<StatusReply, ClientError> {
        self.call(Kind::Status, request).await
    }

    /// What a node's agent found.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the report itself stands in the reply.
    pub async fn report(&self, request: &ReportRequest) -> Result<ReportReply, ClientError> {
        self.call(Kind::Report, request).await
    }

    /// A node's agent lives.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn heartbeat(&self, request: &HeartbeatRequest) -> Result<HeartbeatReply, ClientError> {
        self.call(Kind::Heartbeat, request).await
    }
}
