//! What a client can ask, kind by kind.

use serde::Serialize;
use tokio::sync::oneshot;

use super::pending::Destination;
use super::{Client, ClientError};
use crate::codec::decode_body;
use crate::protocol::{
    AdoptRequest, CancelReply, CancelRequest, DrainRequest, Kind, ListReply, ListRequest, MODE_WAIT_UNTIL,
    NodeBooksReply, NodeBooksRequest, NodesReply, NodesRequest, PlaceBatch, PlaceBatchReply, PlaceReply,
    PlaceRequest, ReleaseBatch, ReleaseBatchReply, ReleaseReply, ReleaseRequest, RemoveRequest,
    SetResourcesRequest, StatusReply, StatusRequest, WireAllocation, read_units, read_waiting,
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
        self.call_placed(Kind::Place, request).await
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
        let (sender, receiver) = oneshot::channel();
        let sequence = self.enter(Kind::Place, request, Destination::Waiting(sender)).await?;
        let reply = async move {
            let closed = |_| ClientError::ConnectionLost("the client was closed".into());
            let raw = receiver.await.map_err(closed)??;
            let (mut reply, taken) = decode_body::<PlaceReply>(&raw)?;
            read_units(&raw[taken..], std::slice::from_mut(&mut reply));
            Ok(reply)
        };
        Ok((sequence, reply))
    }

    /// Ends the wait of a placement; whether it waited still. Its own reply says what became of it.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn cancel_wait(&self, sequence: u64) -> Result<CancelReply, ClientError> {
        self.call(Kind::CancelWait, &CancelRequest { sequence }).await
    }

    async fn call_placed<Q: Serialize>(&self, kind: Kind, request: &Q) -> Result<PlaceReply, ClientError> {
        let raw = self.call_raw(kind, request).await?;
        let (mut reply, taken) = decode_body::<PlaceReply>(&raw)?;
        read_units(&raw[taken..], std::slice::from_mut(&mut reply));
        Ok(reply)
    }

    /// Records an allocation that was made elsewhere.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the adoption itself stands in the reply.
    pub async fn adopt(&self, request: &AdoptRequest) -> Result<PlaceReply, ClientError> {
        self.call_placed(Kind::Adopt, request).await
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

    /// Several placements, each decided on its own.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn place_batch(&self, batch: &PlaceBatch) -> Result<PlaceBatchReply, ClientError> {
        let raw = self.call_raw(Kind::PlaceBatch, batch).await?;
        let (mut reply, taken) = decode_body::<PlaceBatchReply>(&raw)?;
        read_units(&raw[taken..], &mut reply.replies);
        Ok(reply)
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
        let raw = self.call_raw(Kind::Status, request).await?;
        let (mut reply, taken) = decode_body::<StatusReply>(&raw)?;
        read_waiting(&raw[taken..], &mut reply);
        Ok(reply)
    }
}
