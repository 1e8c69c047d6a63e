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

/// A grant without units of unit-instance resources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainGrant<'a> {
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

    #[inline]
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
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
    out.extend_from_slice(first.as_slice());
    if selectors.is_empty() {
        out.push(0);
    } else {
        encode_body(selectors, out);
    }
    let mut rest = Written::<{ PREFERRED_TO_NODE.len() + 1 + OWNER_AND_LEASE.len() }>::new();
    rest.fixed(PREFERRED_TO_NODE);
    rest.byte(*avoid_gpu);
    rest.fixed(OWNER_AND_LEASE);
    out.extend_from_slice(rest.as_slice());
}

/// Appends the body of a release.
pub(crate) fn write_release(request: &ReleaseRequest, out: &mut Vec<u8>) {
    let mut numbers = Written::<{ 4 * NUMBER }>::new();
    numbers.allocation(&request.allocation);
    out.extend_from_slice(numbers.as_slice());
}

/// Appends the body of the reply to a granted placement.
pub(crate) fn write_grant(grant: &PlainGrant<'_>, out: &mut Vec<u8>) {
    let PlainGrant { node, node_name, allocation, gpus, gpu_part, alternative } = *grant;
    // The reason is 0, and there is a placement.
    let mut first = Written::<{ 2 + 2 * NUMBER }>::new();
    first.byte(0);
    first.byte(1);
    first.unsigned(node);
    first.unsigned(node_name.len() as u64);
    out.extend_from_slice(first.as_slice());
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
    out.extend_from_slice(rest.as_slice());
}

/// The body of the reply to a release of an allocation that was no bundle: no reason, fault or count.
pub(crate) const RELEASED: [u8; 3] = [0, 0, 0];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestCaseError;

    use super::*;
    use crate::codec::{decode_body, encode_body};
    use crate::protocol::{
        FallbackSelector, Fault, Name, NamedAmount, NamedUnits, PreferredSelector, PreferredTerm, ReasonCode,
        RefusalBody, SelectorTerm, Toleration,
    };

    fn encoded(body: &impl serde::Serialize) -> Vec<u8> {
        let mut out = Vec::new();
        encode_body(body, &mut out);
        out
    }

    /// Numbers of all lengths.
    fn unsigned() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift)
    }

    fn signed() -> impl Strategy<Value = i64> {
        (any::<i64>(), 0u32..64).prop_map(|(number, shift)| number >> shift)
    }

    fn allocation() -> impl Strategy<Value = WireAllocation> {
        (any::<u32>(), any::<u16>(), unsigned(), any::<u16>()).prop_map(
            |(incarnation, partition, sequence, tenant)| WireAllocation {
                incarnation,
                partition,
                sequence,
                tenant,
            },
        )
    }

    fn written(request: &PlaceRequest) -> Vec<u8> {
        let mut out = Vec::new();
        write_place(request, &mut out);
        out
    }

    #[test]
    fn a_placement_that_is_not_plain_is_left_to_the_decoder() {
        let plain = PlaceRequest::default();
        assert!(read_place(&encoded(&plain)).is_some());
        let custom = vec![NamedAmount::default()];
        let demand = DemandBody { custom, ..DemandBody::default() };
        let others = [
            PlaceRequest { demand, ..plain.clone() },
            PlaceRequest { queue: "q".to_owned(), ..plain.clone() },
            PlaceRequest { priority: 1, ..plain.clone() },
            PlaceRequest { preferred: vec![PreferredTerm::default()], ..plain.clone() },
            PlaceRequest { candidates: vec![0], ..plain.clone() },
            PlaceRequest { tolerations: vec![Toleration::default()], ..plain.clone() },
            PlaceRequest { mode: 1, ..plain.clone() },
            PlaceRequest { deadline: 1, ..plain.clone() },
            PlaceRequest { lease: 1, ..plain.clone() },
            PlaceRequest { group: Some(0), ..plain.clone() },
            PlaceRequest { expected_version: 1, ..plain.clone() },
            PlaceRequest { count: 0, ..plain.clone() },
            PlaceRequest { explain: 1, ..plain.clone() },
            PlaceRequest { fallbacks: vec![FallbackSelector::default()], ..plain.clone() },
            PlaceRequest { preferred_selectors: vec![PreferredSelector::default()], ..plain.clone() },
            PlaceRequest { preferred_nodes: vec![0], ..plain.clone() },
            PlaceRequest { node: 1, ..plain.clone() },
            PlaceRequest { owner: 1, ..plain.clone() },
            PlaceRequest { session_lease: true, ..plain },
        ];
        for other in others {
            let bytes = encoded(&other);
            assert_eq!(read_place(&bytes), None, "{other:?}");
            assert_eq!(written(&other), bytes, "{other:?}");
        }
    }

    #[test]
    fn a_reply_that_is_no_plain_grant_is_left_to_the_decoder() {
        let placed = PlacedBody::default();
        let grant = PlaceReply { placed: Some(placed.clone()), ..PlaceReply::default() };
        assert_eq!(read_grant(&encoded(&grant)), Some(grant.clone()));
        let units = vec![NamedUnits::default()];
        let others = [
            PlaceReply::default(),
            PlaceReply { reason: ReasonCode(1), ..grant.clone() },
            PlaceReply { placed: Some(PlacedBody { units, ..placed.clone() }), ..grant.clone() },
            PlaceReply { refusal: Some(RefusalBody::default()), ..grant.clone() },
            PlaceReply { fault: Some(Fault::default()), ..grant.clone() },
            // Longer than their bounds, so the decoder refuses them.
            PlaceReply {
                placed: Some(PlacedBody { node_name: "n".repeat(NAME_BYTES_MAX + 1), ..placed.clone() }),
                ..grant.clone()
            },
            PlaceReply {
                placed: Some(PlacedBody { gpus: vec![0; GPU_INSTANCES_MAX + 1], ..placed }),
                ..grant
            },
        ];
        for other in others {
            assert_eq!(read_grant(&encoded(&other)), None, "{other:?}");
        }
    }

    #[test]
    fn a_release_is_the_same_bytes() {
        assert_eq!(encoded(&ReleaseReply::default()), RELEASED);
        assert_eq!(read_released(&RELEASED), Some(ReleaseReply::default()));
        let inside = ReleaseReply { inside_ended: Some(0), ..ReleaseReply::default() };
        assert_eq!(read_released(&encoded(&inside)), None);
    }

    /// Bytes that often begin a long number, and are often its high bytes.
    fn bytes_of_numbers() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![4 => any::<u8>(), 2 => Just(0), 1 => 251u8..=255];
        proptest::collection::vec(byte, 0..40)
    }

    /// If a body is read as a plain placement, the decoder reads the same from it, or refuses its selectors.
    fn check_place(bytes: &[u8]) -> Result<(), TestCaseError> {
        let Some(plain) = read_place(bytes) else { return Ok(()) };
        let decoded = decode_body::<PlaceRequest>(bytes);
        if plain.selectors.is_empty() {
            prop_assert_eq!(decoded, Ok((PlaceRequest::from(plain), bytes.len())));
            return Ok(());
        }
        let selectors = decode_body::<PlaceRequest>(&{
            let mut alone = encoded(&PlaceRequest::default());
            let at = 6 + QUEUE_AND_PRIORITY.len();
            alone.splice(at..=at, plain.selectors.iter().copied());
            alone
        });
        match (decoded, selectors) {
            (Ok((decoded, length)), Ok((PlaceRequest { selectors, .. }, _))) => {
                prop_assert_eq!(length, bytes.len());
                prop_assert_eq!(decoded, PlaceRequest { selectors, ..PlaceRequest::from(plain) });
            }
            (Err(_), Err(_)) => {}
            (decoded, selectors) => prop_assert!(false, "{decoded:?}, and of the selectors {selectors:?}"),
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn placements_are_read_as_the_decoder_reads_them(
            cpu in signed(), memory in signed(), gpu in signed(), policy: u8, attribute_order: u8, avoid_gpu: u8,
            terms in proptest::collection::vec(("[a-z]{1,9}", 1u8..9, proptest::collection::vec(".{0,9}", 0..3)), 0..3),
            more: bool,
        ) {
            let plain = PlainPlace { cpu, memory, gpu, policy, attribute_order, avoid_gpu, selectors: &[] };
            let term = |(key, operator, values): (String, u8, Vec<String>)| {
                let values = values.into_iter().map(Name).collect();
                SelectorTerm { key, operator, values }
            };
            let selectors: Vec<_> = terms.into_iter().map(term).collect();
            let terms = encoded(&selectors);
            let plain = PlainPlace { selectors: if selectors.is_empty() { &[] } else { &terms }, ..plain };
            let request = PlaceRequest { selectors, ..PlaceRequest::from(plain) };
            let mut bytes = encoded(&request);
            prop_assert_eq!(&written(&request), &bytes);
            prop_assert_eq!(read_place(&bytes), Some(plain));
            for length in 0..bytes.len() {
                prop_assert_eq!(read_place(&bytes[..length]), None);
            }
            bytes.push(u8::from(more));
            prop_assert_eq!(read_place(&bytes), None);
        }

        #[test]
        fn what_is_read_of_any_bytes_is_what_the_decoder_reads(bytes in bytes_of_numbers()) {
            check_place(&bytes)?;
            if let Some(allocation) = read_release(&bytes) {
                prop_assert_eq!(decode_body(&bytes), Ok((ReleaseRequest { allocation }, bytes.len())));
            }
            // Nearly a grant: from the allocation on, any bytes.
            let grant: Vec<u8> = [0, 1, 7, 1, b'n'].into_iter().chain(bytes.iter().copied()).chain([0; 3]).collect();
            for end in 0..=grant.len() {
                if let Some(reply) = read_grant(&grant[..end]) {
                    prop_assert_eq!(decode_body(&grant[..end]), Ok((reply, end)));
                }
            }
            // Nearly a placement: the rest of one follows any bytes, which may be its selectors too.
            let rest = [&PREFERRED_TO_NODE[..], &[0], &OWNER_AND_LEASE].concat();
            let amounts = bytes.iter().take(12).copied();
            check_place(&amounts.chain(QUEUE_AND_PRIORITY).chain([0]).chain(rest.iter().copied()).collect::<Vec<_>>())?;
            let selectors = bytes.iter().map(|byte| byte % 8);
            let before = [0; 6].into_iter().chain(QUEUE_AND_PRIORITY);
            check_place(&before.chain(selectors).chain(rest).collect::<Vec<_>>())?;
        }

        #[test]
        fn releases_are_read_as_the_decoder_reads_them(allocation in allocation()) {
            let bytes = encoded(&ReleaseRequest { allocation });
            let mut written = Vec::new();
            write_release(&ReleaseRequest { allocation }, &mut written);
            prop_assert_eq!(&written, &bytes);
            prop_assert_eq!(read_release(&bytes), Some(allocation));
            for length in 0..bytes.len() {
                prop_assert_eq!(read_release(&bytes[..length]), None);
            }
        }

        #[test]
        fn grants_are_the_bytes_of_the_encoder_and_the_decoder(
            node in unsigned(), node_name in ".{0,60}", allocation in allocation(), gpus: u16, gpu_part: u16,
            alternative: u8,
        ) {
            let instances = (0..16u8).filter(|instance| gpus >> instance & 1 == 1).collect();
            let placed = PlacedBody {
                node,
                node_name: node_name.clone(),
                allocation,
                gpus: instances,
                gpu_part,
                units: Vec::new(),
            };
            let reply = PlaceReply { placed: Some(placed), alternative, ..PlaceReply::default() };
            let grant = PlainGrant { node, node_name: &node_name, allocation, gpus, gpu_part, alternative };
            let mut bytes = Vec::new();
            write_grant(&grant, &mut bytes);
            prop_assert_eq!(&bytes, &encoded(&reply));
            for length in 0..bytes.len() {
                prop_assert_eq!(read_grant(&bytes[..length]), None);
            }
            prop_assert_eq!(read_grant(&bytes), Some(reply));
        }
    }
}
