//! The bodies of plain placements and releases, read and written without the general encoder and decoder.
//!
//! Most requests are of this kind: a placement that asks for amounts and perhaps a policy, a release, and their grants.
//! The bytes are those of [`encode_body`] and [`decode_body`](super::decode_body), which the tests compare. Whatever is not
//! plain is left to these.

use wharf_core::limits::{GPU_INSTANCES_MAX, NAME_BYTES_MAX};

use super::encode_body;
use crate::protocol::{
    DemandBody, PlaceReply, PlaceRequest, PlacedBody, ReleaseReply, ReleaseRequest, WireAllocation,
};

/// Lengths of the numbers that follow these first bytes: `u16`, `u32` and `u64`.
const WIDE: u8 = 251;
const WIDER: u8 = 252;
const WIDEST: u8 = 253;

/// A placement that leaves all fields but these at their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlainPlace<'a> {
    pub(crate) cpu: i64,
    pub(crate) memory: i64,
    pub(crate) gpu: i64,
    pub(crate) policy: u8,
    pub(crate) attribute_order: u8,
    pub(crate) avoid_gpu: u8,
    /// The selectors as they are encoded, or nothing. Their texts and bounds are not checked.
    pub(crate) selectors: &'a [u8],
}

/// Without the selectors.
impl From<PlainPlace<'_>> for PlaceRequest {
    fn from(plain: PlainPlace<'_>) -> Self {
        let PlainPlace { cpu, memory, gpu, policy, attribute_order, avoid_gpu, selectors: _ } = plain;
        let mut request = Self { policy, attribute_order, avoid_gpu, ..Self::default() };
        request.demand.cpu = cpu;
        request.demand.memory = memory;
        request.demand.gpu = gpu;
        request
    }
}

/// A grant without units of unit-instance resources. [`plain_grant`](crate::convert::plain_grant) makes it.
#[derive(Clone, Copy, Debug)]
pub struct PlainGrant<'a> {
    pub(crate) node: u64,
    pub(crate) node_name: &'a str,
    pub(crate) allocation: WireAllocation,
    /// The GPU instances, one bit each.
    pub(crate) gpus: u16,
    pub(crate) gpu_part: u16,
    pub(crate) alternative: u8,
}

/// The fields of a plain placement before its selectors, as they are encoded: the queue and the priority.
const QUEUE_AND_PRIORITY: [u8; 2] = [0, 0];
/// The fields after the selectors up to the node. All are 0, except the count of placements, which is 1.
const PREFERRED_TO_NODE: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0];
/// The fields after its choice to avoid GPUs: the owner and the kind of lease.
const OWNER_AND_LEASE: [u8; 2] = [0, 0];

/// Reads numbers of a body.
struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    /// Reads a number that is encoded in no more bytes than those after `widest`.
    #[inline]
    fn up_to(&mut self, widest: u8) -> Option<u64> {
        match self.byte()? {
            small if small < WIDE => Some(small.into()),
            wide if wide > widest => None,
            WIDE => Some(u16::from_le_bytes(self.fixed()?).into()),
            WIDER => Some(u32::from_le_bytes(self.fixed()?).into()),
            _ => Some(u64::from_le_bytes(self.fixed()?)),
        }
    }

    #[inline]
    fn unsigned(&mut self) -> Option<u64> {
        self.up_to(WIDEST)
    }

    #[inline]
    fn short(&mut self) -> Option<u16> {
        self.up_to(WIDE).map(|number| number as u16)
    }

    /// Zigzag: the sign is the lowest bit.
    #[inline]
    fn signed(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    #[inline]
    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (slice, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(slice)
    }

    #[inline]
    fn allocation(&mut self) -> Option<WireAllocation> {
        Some(WireAllocation {
            incarnation: self.up_to(WIDER)? as u32,
            partition: self.short()?,
            sequence: self.unsigned()?,
            tenant: self.short()?,
        })
    }

    /// Skips a text of fewer than 251 bytes.
    fn skip_text(&mut self) -> Option<()> {
        let length = self.byte().filter(|&length| length < WIDE)?;
        self.slice(length.into()).map(drop)
    }

    /// Skips selectors, and returns their bytes: a count, and for each its key, its operator and its values.
    fn skip_selectors(&mut self) -> Option<&'a [u8]> {
        let before = self.0;
        for _ in 0..self.byte().filter(|&count| count < WIDE)? {
            self.skip_text()?;
            self.byte()?;
            for _ in 0..self.byte().filter(|&count| count < WIDE)? {
                self.skip_text()?;
            }
        }
        Some(&before[..before.len() - self.0.len()])
    }
}

/// Reads a placement that is plain. `None` if the payload is anything else.
pub(crate) fn read_place(payload: &[u8]) -> Option<PlainPlace<'_>> {
    let mut numbers = Numbers(payload);
    let cpu = numbers.signed()?;
    let memory = numbers.signed()?;
    let gpu = numbers.signed()?;
    let customs = numbers.byte()?;
    let policy = numbers.byte()?;
    let attribute_order = numbers.byte()?;
    let queue_and_priority = numbers.fixed()?;
    let selectors = match numbers.0.first()? {
        0 => {
            numbers.byte()?;
            &[][..]
        }
        _ => numbers.skip_selectors()?,
    };
    let preferred_to_node = numbers.fixed()?;
    let avoid_gpu = numbers.byte()?;
    let is_plain = customs == 0
        && queue_and_priority == QUEUE_AND_PRIORITY
        && preferred_to_node == PREFERRED_TO_NODE
        && numbers.0 == OWNER_AND_LEASE;
    is_plain.then_some(PlainPlace { cpu, memory, gpu, policy, attribute_order, avoid_gpu, selectors })
}

/// Reads a release. `None` if the payload is anything else, or has extensions.
pub(crate) fn read_release(payload: &[u8]) -> Option<WireAllocation> {
    let mut numbers = Numbers(payload);
    let allocation = numbers.allocation()?;
    numbers.0.is_empty().then_some(allocation)
}

/// Reads the reply to a granted placement without units. `None` if the payload is anything else, or has extensions.
pub(crate) fn read_grant(payload: &[u8]) -> Option<PlaceReply> {
    let mut numbers = Numbers(payload);
    // The reason, and that there is a placement.
    if numbers.fixed()? != [0, 1] {
        return None;
    }
    let node = numbers.unsigned()?;
    let name_bytes = numbers.unsigned().filter(|&length| length <= NAME_BYTES_MAX as u64)?;
    let node_name = std::str::from_utf8(numbers.slice(name_bytes as usize)?).ok()?.to_owned();
    let allocation = numbers.allocation()?;
    let instances = numbers.byte().filter(|&count| usize::from(count) <= GPU_INSTANCES_MAX)?;
    let gpus = numbers.slice(instances.into())?.to_vec();
    let gpu_part = numbers.short()?;
    // No units, refusal and fault.
    let [0, 0, 0, alternative] = *numbers.0 else { return None };
    let placed = PlacedBody { node, node_name, allocation, gpus, gpu_part, units: Vec::new() };
    Some(PlaceReply { placed: Some(placed), alternative, ..PlaceReply::default() })
}

/// Reads the reply to a release of an allocation that was no bundle. `None` if the payload is anything else.
pub(crate) fn read_released(payload: &[u8]) -> Option<ReleaseReply> {
    (payload == RELEASED).then(ReleaseReply::default)
}

/// A few numbers of a body. They are put together here and appended at once, because the room of a vector is checked with
/// each append.
struct Written<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Written<N> {
    #[inline]
    fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    #[inline]
    fn fixed<const WIDTH: usize>(&mut self, bytes: [u8; WIDTH]) {
        self.bytes[self.length..self.length + WIDTH].copy_from_slice(&bytes);
        self.length += WIDTH;
    }

    #[inline]
    fn unsigned(&mut self, number: u64) {
        if number < u64::from(WIDE) {
            self.byte(number as u8);
        } else {
            self.long(number);
        }
    }

    fn long(&mut self, number: u64) {
        if let Ok(number) = u16::try_from(number) {
            self.byte(WIDE);
            self.fixed(number.to_le_bytes());
        } else if let Ok(number) = u32::try_from(number) {
            self.byte(WIDER);
            self.fixed(number.to_le_bytes());
        } else {
            self.byte(WIDEST);
            self.fixed(number.to_le_bytes());
        }
    }

    /// Zigzag: the sign is the lowest bit.
    #[inline]
    fn signed(&mut self, number: i64) {
        self.unsigned((number << 1 ^ number >> 63) as u64);
    }

    #[inline]
    fn allocation(&mut self, allocation: &WireAllocation) {
        self.unsigned(allocation.incarnation.into());
        self.unsigned(allocation.partition.into());
        self.unsigned(allocation.sequence);
        self.unsigned(allocation.tenant.into());
    }

    /// Appends the bytes to `out`. All that there is room for is copied, because that takes no call: the number of bytes
    /// is known here.
    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.length;
        out.extend_from_slice(&self.bytes);
        out.truncate(end);
    }
}

/// The longest number: its first byte, and eight more.
const NUMBER: usize = 9;

/// Appends the body of a request for a placement, whether it is plain or not.
pub(crate) fn write_place(request: &PlaceRequest, out: &mut Vec<u8>) {
    // All fields are named, so that none is forgotten here.
    let PlaceRequest {
        demand: DemandBody { cpu, memory, gpu, custom },
        policy,
        attribute_order,
        queue,
        priority: 0,
        selectors,
        preferred,
        candidates,
        tolerations,
        mode: 0,
        deadline: 0,
        lease: 0,
        group: None,
        expected_version: 0,
        count: 1,
        explain: 0,
        fallbacks,
        preferred_selectors,
        preferred_nodes,
        node: 0,
        avoid_gpu,
        owner: 0,
        session_lease: false,
    } = request
    else {
        return encode_body(request, out);
    };
    let is_plain = custom.is_empty()
        && queue.is_empty()
        && preferred.is_empty()
        && candidates.is_empty()
        && tolerations.is_empty()
        && fallbacks.is_empty()
        && preferred_selectors.is_empty()
        && preferred_nodes.is_empty();
    if !is_plain {
        return encode_body(request, out);
    }
    // The amounts, no custom resources, the two choices, the queue and the priority.
    let mut first = Written::<{ 3 * NUMBER + 1 + 2 + QUEUE_AND_PRIORITY.len() }>::new();
    first.signed(*cpu);
    first.signed(*memory);
    first.signed(*gpu);
    first.fixed([0, *policy, *attribute_order]);
    first.fixed(QUEUE_AND_PRIORITY);
    first.append_to(out);
    if selectors.is_empty() {
        out.push(0);
    } else {
        encode_body(selectors, out);
    }
    let mut rest = Written::<{ PREFERRED_TO_NODE.len() + 1 + OWNER_AND_LEASE.len() }>::new();
    rest.fixed(PREFERRED_TO_NODE);
    rest.byte(*avoid_gpu);
    rest.fixed(OWNER_AND_LEASE);
    rest.append_to(out);
}

/// Appends the body of a release.
pub(crate) fn write_release(request: &ReleaseRequest, out: &mut Vec<u8>) {
    let mut numbers = Written::<{ 4 * NUMBER }>::new();
    numbers.allocation(&request.allocation);
    numbers.append_to(out);
}

/// Appends the body of the reply to a granted placement.
pub fn write_grant(grant: &PlainGrant<'_>, out: &mut Vec<u8>) {
    let PlainGrant { node, node_name, allocation, gpus, gpu_part, alternative } = *grant;
    // The reason is 0, and there is a placement.
    let mut first = Written::<{ 2 + 2 * NUMBER }>::new();
    first.byte(0);
    first.byte(1);
    first.unsigned(node);
    first.unsigned(node_name.len() as u64);
    first.append_to(out);
    out.extend_from_slice(node_name.as_bytes());
    // The allocation, the GPU instances and the part of one, and the last four bytes.
    let mut rest = Written::<{ 4 * NUMBER + 1 + u16::BITS as usize + NUMBER + 4 }>::new();
    rest.allocation(&allocation);
    rest.byte(gpus.count_ones() as u8);
    let mut left = gpus;
    while left != 0 {
        rest.byte(left.trailing_zeros() as u8);
        left &= left - 1;
    }
    rest.unsigned(gpu_part.into());
    // No units, refusal and fault.
    rest.fixed([0, 0, 0, alternative]);
    rest.append_to(out);
}

/// The body of the reply to a release of an allocation that was no bundle: no reason, fault or count.
const RELEASED: [u8; 3] = [0, 0, 0];

/// Appends the body of the reply to a release of an allocation that was no bundle.
pub fn write_released(out: &mut Vec<u8>) {
    out.extend_from_slice(&RELEASED);
}

#[cfg(test)]
mod tests;
