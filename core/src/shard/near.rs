//! How near the nodes of a replica are to holding a request. Explanations of pending tasks read it page by page.

use crate::index::{Slot, Visits};
use crate::limits::EXPLAIN_NODES_MAX;
use crate::node::NodeState;
use crate::request::{Explain, Nearest, NodeLook, NodeRoom, PlacementRequest, Refusal};
use crate::resource::{Amount, GPU_UNIT, GpuBooks, GpuRequest, ResourceKind};
use crate::shard::Shard;
use crate::shard::books::Books;
use crate::shard::choose::Page;

/// What a node has of one kind.
struct Stock {
    kind: ResourceKind,
    asked: i64,
    /// How many of the requests it could hold by this kind.
    count: i64,
    /// What it lacks for one more than some number of requests.
    lacks: [i64; 2],
    /// What is free in total.
    free: i64,
}

impl Stock {
    /// Of a kind that is one amount.
    fn plain(kind: ResourceKind, asked: i64, free: i64) -> Self {
        let free = free.max(0);
        Self { kind, asked, count: free / asked, lacks: [free, 0], free }
    }

    /// Returns what is lacking for one more than `count` requests.
    fn lacking(&self, count: i64) -> i64 {
        let [free, of_device] = self.lacks;
        if of_device > 0 {
            // Parts are lacking on one device. The one that comes nearest has this much left.
            return if self.count > count { 0 } else { of_device };
        }
        ((count + 1).saturating_mul(self.asked) - free).max(0)
    }
}

/// How many of the requests GPUs could hold, and what is lacking on the nearest device for one more part.
fn of_gpus(gpus: &GpuBooks, devices: u8, request: GpuRequest) -> Option<Stock> {
    let kind = ResourceKind::Gpu;
    let unit = i64::from(GPU_UNIT);
    match request {
        GpuRequest::None => None,
        GpuRequest::Whole(count) => {
            let whole = i64::from(gpus.whole_free()) * unit;
            let asked = i64::from(count) * unit;
            Some(Stock { free: gpus.total_free(), ..Stock::plain(kind, asked, whole) })
        }
        GpuRequest::Fraction(part) => {
            let part = i64::from(part);
            let free = || (0..devices).map(|instance| i64::from(gpus.free(instance)));
            let left = free().map(|free| free % part).max().unwrap_or(0);
            let count = free().map(|free| free / part).sum();
            Some(Stock { kind, asked: part, count, lacks: [0, part - left], free: gpus.total_free() })
        }
    }
}

/// Returns how many of the requests a node could hold if it were empty, at least.
fn empty_count(books: &Books, slot: Slot, request: &PlacementRequest) -> i64 {
    let spec = &books.nodes.cold(slot).registration.spec;
    let demand = &request.demand;
    let mut most = i64::from(books.nodes.places_max());
    let mut limit = |asked: i64, total: i64| {
        if asked > 0 {
            most = most.min(total / asked);
        }
    };
    limit(demand.cpu.units(), spec.cpu.units());
    limit(demand.memory.units(), spec.memory.units());
    let gpus = GpuBooks::with_devices(spec.gpus);
    if let Some(stock) = of_gpus(&gpus, spec.gpus, demand.gpu) {
        most = most.min(stock.count);
    }
    let unit = Amount::SCALE;
    for &(id, amount) in demand.custom() {
        let total = spec.custom_total(id).units();
        let asked = amount.units();
        let count = match id.is_unit_instance() {
            true if asked < unit => (total / unit) * (unit / asked),
            _ => total / asked,
        };
        most = most.min(count);
    }
    most.max(0)
}

impl Shard {
    /// Counts one page of the nodes of a replica, from a slot on: the failing checks as of a
    /// [refusal](crate::request::Refusal), and in `room` what the nodes have room for. The refusal tells where the next
    /// page begins. `request` asks for all nodes to be counted. `each` is told of every node that labels and taints allow.
    ///
    /// # Panics
    /// If this is not a replica, or the request does not ask for all nodes.
    pub(crate) fn room_page(
        &mut self,
        request: &PlacementRequest,
        from: Slot,
        room: &mut NodeRoom,
        each: &mut dyn FnMut(Slot, &NodeLook),
    ) -> Refusal {
        assert!(self.replica.is_some(), "only a replica is looked at for explanations");
        assert!(request.explain == Explain::Full, "all nodes are counted, page by page");
        let scope = self.choose.eligibility(&self.books, request);
        let page = Page { from, most: EXPLAIN_NODES_MAX };
        let (refusal, _) =
            self.choose.explain_page(&self.books, request, scope, page, &mut Visits::default());
        let books = &self.books;
        let eligible = self.choose.eligible(books, request, scope);
        let end = refusal.rest.unwrap_or_else(|| books.nodes.slots());
        let named = books.nodes.named(request);
        let slots: Box<dyn Iterator<Item = Slot>> = match named {
            // All of them are on one page.
            Some(named) => Box::new(named.into_iter()),
            None => Box::new(from..end),
        };
        for slot in slots {
            let is_reserved =
                || books.reservation(slot).is_some_and(|there| Some(there.owner) != request.owner);
            let is_ready = books.nodes.room(slot).state == Some(NodeState::Ready);
            if is_ready && eligible.allows(slot) && !is_reserved() {
                let look = look_at(books, slot, request, room);
                room.add(&look);
                each(slot, &look);
            }
        }
        refusal
    }
}

/// Looks at a node that labels and taints allow, and adds what is free there.
fn look_at(books: &Books, slot: Slot, request: &PlacementRequest, found: &mut NodeRoom) -> NodeLook {
    let demand = &request.demand;
    let room = books.nodes.room(slot);
    let hot = books.nodes.hot(slot);
    let mut stocks: Vec<Stock> = Vec::with_capacity(3 + demand.custom().len());
    let plain = [
        (ResourceKind::Cpu, demand.cpu.units(), room.cpu.units()),
        (ResourceKind::Memory, demand.memory.units(), room.memory.units()),
    ];
    let asked = plain.into_iter().filter(|&(_, asked, _)| asked > 0);
    stocks.extend(asked.map(|(kind, asked, free)| Stock::plain(kind, asked, free)));
    let devices = books.nodes.cold(slot).registration.spec.gpus;
    if let Some(stock) = of_gpus(&hot.gpus, devices, demand.gpu) {
        found.fragmented += u64::from(stock.count == 0 && stock.free >= stock.asked);
        stocks.push(stock);
    }
    for &(id, amount) in demand.custom() {
        let kind = ResourceKind::Custom(id);
        let book = books.nodes.book(slot, id);
        let free = book.map_or(0, |book| book.room_for(amount).units());
        let total = book.map_or(0, |book| book.available.units());
        stocks.push(Stock { free: total, ..Stock::plain(kind, amount.units(), free) });
    }
    let places = i64::from(room.places.max(0));
    let count = stocks.iter().map(|stock| stock.count).min().unwrap_or(places).min(places);
    stocks.iter().for_each(|stock| found.add_free(stock.kind, stock.free));
    let empty = empty_count(books, slot, request);
    let number = |count: i64| u64::try_from(count).expect("a count of places");
    let mut nearest = None;
    if count < places {
        let lacks: Vec<_> = stocks.iter().map(|of| (of.kind, of.lacking(count), of.asked)).collect();
        let lacks: Vec<_> = lacks.into_iter().filter(|&(_, lacks, _)| lacks > 0).collect();
        let of = || Nearest::new(hot.id, number(count), &lacks, empty > count);
        nearest = (!lacks.is_empty()).then(of);
    }
    NodeLook { node: hot.id, places: number(count), empty: number(empty), nearest }
}
