//! Refusals: which checks of a request fail on how many nodes.

use super::choose::{Eligibility, Page};
use super::{Explain, Refused, Shard};
use crate::index::Visits;
use crate::request::{PlacementRequest, Refusal};

impl Shard {
    #[inline(never)]
    pub(super) fn refused(&mut self, request: &PlacementRequest, scope: Eligibility) -> Refused {
        self.books.count_refused();
        Refused { refusal: Box::new(self.explain(request, scope)), parked: false }
    }

    /// Counts the failing checks of a request over the first page of nodes.
    pub(super) fn explain(&mut self, request: &PlacementRequest, scope: Eligibility) -> Refusal {
        let page = Page { from: 0, most: self.audit.pages.explain_nodes };
        let [mut of_capacities, mut of_free] = [Visits::default(); 2];
        let meters = [&mut of_capacities, &mut of_free];
        let (refusal, looked_at) = self.choose.explain(&self.books, request, scope, page, meters);
        assert!(refusal.examined <= refusal.nodes, "more nodes are examined than there are");
        self.audit.work.nodes_looked_at += looked_at;
        Refusal { growth: self.publish.growth, ..refusal }
    }

    /// Counts one more page of nodes.
    pub(super) fn handle_explain(&mut self, Explain { request, from }: &Explain) -> Refusal {
        let scope = self.choose.eligibility(&self.books, request);
        let page = Page { from: *from, most: self.audit.pages.explain_nodes };
        let meter = &mut Visits::default();
        let (refusal, looked_at) = self.choose.explain_page(&self.books, request, scope, page, meter);
        assert!(refusal.examined <= refusal.nodes, "more nodes are examined than there are");
        self.audit.work.nodes_looked_at += looked_at;
        Refusal { growth: self.publish.growth, ..refusal }
    }
}
