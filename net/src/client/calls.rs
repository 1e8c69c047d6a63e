//! What a client can ask, kind by kind.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::pending::Destination;
use super::{Client, ClientError};
use crate::codec::decode_body;
use crate::protocol::{
    AdoptRequest, CancelReply, CancelRequest, DETAILS_VERSION, DrainRequest, EndReservationRequest,
    HeartbeatReply, HeartbeatRequest, Kind, ListDetailsReply, ListReply, ListRequest, MODE_WAIT_UNTIL,
    NodeBooksReply, NodeBooksRequest, NodesReply, NodesRequest, PLACE_VERSION_OWNER,
    PLACE_VERSION_PREFERENCES, PlaceBatch, PlaceBatchReply, PlaceBatchReplyV2, PlaceBatchV2, PlaceBatchV3,
    PlaceReply, PlaceReplyV2, PlaceRequest, PlaceRequestV2, PlaceRequestV3, ReleaseBatch, ReleaseBatchReply,
    ReleaseReply, ReleaseRequest, RemoveRequest, ReportReply, ReportRequest, ReserveReply, ReserveRequest,
    SetResourcesRequest, StatusDetailsReply, StatusReply, StatusRequest, WireAllocation, read_released,
    read_reservation, read_reserved, read_reserved_nodes, read_unhealthy, read_units, read_waiting,
};

/// A reply's body, and the extensions that follow it.
pub(super) fn split<R: DeserializeOwned>(raw: &[u8]) -> Result<(R, &[u8]), ClientError> {
    let (reply, taken) = decode_body::<R>(raw)?;
    Ok((reply, &raw[taken..]))
}

pub(super) fn placed(raw: &[u8]) -> Result<PlaceReply, ClientError> {
    let (mut reply, rest) = split::<PlaceReply>(raw)?;
    read_units(rest, [&mut reply])?;
    Ok(reply)
}

fn placed_v2(raw: &[u8]) -> Result<PlaceReplyV2, ClientError> {
    let (mut reply, rest) = split::<PlaceReplyV2>(raw)?;
    read_units(rest, [&mut reply.reply])?;
    Ok(reply)
}

impl Client {
    /// One placement.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the placement itself stands in the reply.
    pub async fn place(&self, request: &PlaceRequest) -> Result<PlaceReply, ClientError> {
        if request.mode == MODE_WAIT_UNTIL {
            return self.place_waiting(request).await?.1.await;
        }
        placed(&self.call_raw(Kind::Place, 1, request).await?)
    }

    /// One placement with preferences (body version 2).
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the placement itself stands in the reply.
    pub async fn place_v2(&self, request: &PlaceRequestV2) -> Result<PlaceReplyV2, ClientError> {
        if request.request.mode == MODE_WAIT_UNTIL {
            return self.place_waiting_v2(request).await?.1.await;
        }
        placed_v2(&self.call_raw(Kind::Place, PLACE_VERSION_PREFERENCES, request).await?)
    }

    /// One placement that may use an owner's reservations (body version 3).
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the placement itself stands in the reply.
    pub async fn place_v3(&self, request: &PlaceRequestV3) -> Result<PlaceReplyV2, ClientError> {
        if request.request.request.mode == MODE_WAIT_UNTIL {
            return self.place_waiting_v3(request).await?.1.await;
        }
        placed_v2(&self.call_raw(Kind::Place, PLACE_VERSION_OWNER, request).await?)
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
        self.enter_waiting(Kind::Place, 1, request, placed).await
    }

    /// As [`place_waiting`](Self::place_waiting), with preferences (body version 2).
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn place_waiting_v2(
        &self,
        request: &PlaceRequestV2,
    ) -> Result<(u64, impl Future<Output = Result<PlaceReplyV2, ClientError>> + use<>), ClientError> {
        self.enter_waiting(Kind::Place, PLACE_VERSION_PREFERENCES, request, placed_v2).await
    }

    /// As [`place_waiting`](Self::place_waiting), of one that may use an owner's reservations (body
    /// version 3).
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn place_waiting_v3(
        &self,
        request: &PlaceRequestV3,
    ) -> Result<(u64, impl Future<Output = Result<PlaceReplyV2, ClientError>> + use<>), ClientError> {
        self.enter_waiting(Kind::Place, PLACE_VERSION_OWNER, request, placed_v2).await
    }

    pub(super) async fn enter_waiting<Q: Serialize, R>(
        &self,
        kind: Kind,
        version: u8,
        request: &Q,
        read: fn(&[u8]) -> Result<R, ClientError>,
    ) -> Result<(u64, impl Future<Output = Result<R, ClientError>> + use<Q, R>), ClientError> {
        let (sender, receiver) = oneshot::channel();
        let sequence = self.enter(kind, version, request, Destination::Waiting(sender)).await?;
        let reply = async move {
            let closed = |_| ClientError::ConnectionLost("the client was closed".into());
            read(&receiver.await.map_err(closed)??)
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
        placed(&self.call_raw(Kind::Adopt, 1, request).await?)
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
        let raw = self.call_raw(Kind::NodeBooks, 1, request).await?;
        let (mut reply, rest) = split::<NodeBooksReply>(&raw)?;
        read_unhealthy(rest, &mut reply)?;
        read_reservation(rest, &mut reply)?;
        Ok(reply)
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
        let raw = self.call_raw(Kind::PlaceBatch, 1, batch).await?;
        let (mut reply, rest) = split::<PlaceBatchReply>(&raw)?;
        read_units(rest, &mut reply.replies)?;
        Ok(reply)
    }

    /// Several placements with preferences (body version 2), each decided on its own.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn place_batch_v2(&self, batch: &PlaceBatchV2) -> Result<PlaceBatchReplyV2, ClientError> {
        let raw = self.call_raw(Kind::PlaceBatch, PLACE_VERSION_PREFERENCES, batch).await?;
        let (mut reply, rest) = split::<PlaceBatchReplyV2>(&raw)?;
        read_units(rest, reply.replies.iter_mut().map(|reply| &mut reply.reply))?;
        Ok(reply)
    }

    /// Several placements that may use owners' reservations (body version 3), each decided on its
    /// own.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn place_batch_v3(&self, batch: &PlaceBatchV3) -> Result<PlaceBatchReplyV2, ClientError> {
        let raw = self.call_raw(Kind::PlaceBatch, PLACE_VERSION_OWNER, batch).await?;
        let (mut reply, rest) = split::<PlaceBatchReplyV2>(&raw)?;
        read_units(rest, reply.replies.iter_mut().map(|reply| &mut reply.reply))?;
        Ok(reply)
    }

    /// Ends an allocation.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn release(&self, allocation: WireAllocation) -> Result<ReleaseReply, ClientError> {
        let raw = self.call_raw(Kind::Release, 1, &ReleaseRequest { allocation }).await?;
        let (mut reply, rest) = split::<ReleaseReply>(&raw)?;
        read_released(rest, std::slice::from_mut(&mut reply))?;
        Ok(reply)
    }

    /// Ends several allocations.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn release_batch(&self, batch: &ReleaseBatch) -> Result<ReleaseBatchReply, ClientError> {
        let raw = self.call_raw(Kind::ReleaseBatch, 1, batch).await?;
        let (mut reply, rest) = split::<ReleaseBatchReply>(&raw)?;
        read_released(rest, &mut reply.replies)?;
        Ok(reply)
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
        let raw = self.call_raw(Kind::Status, 1, request).await?;
        let (mut reply, rest) = split::<StatusReply>(&raw)?;
        read_waiting(rest, &mut reply)?;
        read_reserved(rest, &mut reply)?;
        Ok(reply)
    }

    /// The status with node life and health.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn status_details(&self, request: &StatusRequest) -> Result<StatusDetailsReply, ClientError> {
        let raw = self.call_raw(Kind::Status, DETAILS_VERSION, request).await?;
        let (mut reply, rest) = split::<StatusDetailsReply>(&raw)?;
        read_waiting(rest, &mut reply.status)?;
        read_reserved(rest, &mut reply.status)?;
        Ok(reply)
    }

    /// A page of nodes with their life, health and topology.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn list_node_details(&self, request: &ListRequest) -> Result<ListDetailsReply, ClientError> {
        let raw = self.call_raw(Kind::ListNodes, DETAILS_VERSION, request).await?;
        let (mut reply, rest) = split::<ListDetailsReply>(&raw)?;
        read_reserved_nodes(rest, &mut reply)?;
        Ok(reply)
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
