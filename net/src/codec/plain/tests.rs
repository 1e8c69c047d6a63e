//! Tests that plain bodies are the bytes of the general encoder and decoder.

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
        PlaceReply { placed: Some(PlacedBody { gpus: vec![0; GPU_INSTANCES_MAX + 1], ..placed }), ..grant },
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
