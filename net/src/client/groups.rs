//! What a client can ask of placement groups, and statements of its own.

use super::{Client, ClientError};
use crate::protocol::{
    CreateGroupRequest, GroupReply, GroupStatusRequest, GrowGroupRequest, Kind, ListGroupsReply,
    ListGroupsRequest, MODE_WAIT_UNTIL, PlaceIntoRequest, PlaceReply, RemoveGroupReply, RemoveGroupRequest,
    ShrinkGroupRequest, StatementReply, StatementRequest, WireGroup,
};

impl Client {
    /// Makes a group. One that waits is answered when it is placed, or waited in vain.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the group itself stands in the reply.
    pub async fn create_group(&self, request: &CreateGroupRequest) -> Result<GroupReply, ClientError> {
        if request.mode == MODE_WAIT_UNTIL {
            return self.create_group_waiting(request).await?.1.await;
        }
        self.call(Kind::CreateGroup, request).await
    }

    /// A group that waits: its sequence, by which it can be [cancelled](Self::cancel_wait), and its reply.
    /// It takes no room of the requests that are answered at once.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn create_group_waiting(
        &self,
        request: &CreateGroupRequest,
    ) -> Result<(u64, impl Future<Output = Result<GroupReply, ClientError>> + use<>), ClientError> {
        self.enter_waiting(Kind::CreateGroup, request).await
    }

    /// Adds bundles to a group. Those that wait are answered when they are placed, or when their wait ends.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with them stands in the reply.
    pub async fn grow_group(&self, request: &GrowGroupRequest) -> Result<GroupReply, ClientError> {
        if request.mode == MODE_WAIT_UNTIL {
            return self.grow_group_waiting(request).await?.1.await;
        }
        self.call(Kind::GrowGroup, request).await
    }

    /// Adds bundles to a group that wait where they do not fit now: the sequence, by which that can be
    /// [cancelled](Self::cancel_wait), and the reply.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn grow_group_waiting(
        &self,
        request: &GrowGroupRequest,
    ) -> Result<(u64, impl Future<Output = Result<GroupReply, ClientError>> + use<>), ClientError> {
        self.enter_waiting(Kind::GrowGroup, request).await
    }

    /// Takes bundles out of a group, with what runs in them.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with them stands in the reply.
    pub async fn shrink_group(&self, request: &ShrinkGroupRequest) -> Result<GroupReply, ClientError> {
        self.call(Kind::ShrinkGroup, request).await
    }

    /// Ends a group, with what runs in its bundles.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn remove_group(&self, group: WireGroup) -> Result<RemoveGroupReply, ClientError> {
        self.call(Kind::RemoveGroup, &RemoveGroupRequest { group }).await
    }

    /// A group as it stands.
    ///
    /// # Errors
    /// As [`call`](Self::call); that there is none stands in the reply.
    pub async fn group_status(&self, id: WireGroup) -> Result<GroupReply, ClientError> {
        self.call(Kind::GroupStatus, &GroupStatusRequest { group: id }).await
    }

    /// A page of groups.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn list_groups(&self, request: &ListGroupsRequest) -> Result<ListGroupsReply, ClientError> {
        self.call(Kind::ListGroups, request).await
    }

    /// A placement into a bundle.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the placement itself stands in the reply.
    pub async fn place_into(&self, request: &PlaceIntoRequest) -> Result<PlaceReply, ClientError> {
        self.call(Kind::PlaceInto, request).await
    }

    /// Operations that are planned elsewhere: all of them, or as many as do not conflict.
    ///
    /// # Errors
    /// As [`call`](Self::call); what is wrong with the operations stands in the reply.
    pub async fn submit_statement(&self, request: &StatementRequest) -> Result<StatementReply, ClientError> {
        self.call(Kind::SubmitStatement, request).await
    }
}
