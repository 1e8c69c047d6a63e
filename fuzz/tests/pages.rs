//! The modules of the engine form no cycle, and generated pages are up to date.

use std::path::Path;

use wharf_fuzz::{ModuleGraph, modules_page, protocol_page};
use wharf_net::codec::{FLAG_REPLY, FrameRef, decode_body, decode_frame};
use wharf_net::protocol::{FRAME_BYTES_MAX, Kind, ReleaseReply, ReleaseRequest};

fn core() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src")
}

#[test]
fn no_modules_of_the_engine_use_each_other_in_a_circle() {
    assert_eq!(ModuleGraph::read(&core()).expect("the sources are here").circle(), None);
}

#[test]
fn the_drawing_is_up_to_date() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/modules.md");
    let kept = std::fs::read_to_string(page).expect("the page is here");
    let drawn = modules_page(&core()).expect("the sources are here");
    assert!(kept == drawn, "write it again: cargo run -p wharf-fuzz --example modules > docs/modules.md");
}

#[test]
fn the_tables_of_the_protocol_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let kept = std::fs::read_to_string(root.join("docs/protocol.md")).expect("the page is here");
    let made = protocol_page(&root.join("net/src/protocol"), &kept).expect("the sources are here");
    assert!(kept == made, "write them again: cargo run -p wharf-fuzz --example protocol");
    for body in ["PlaceRequest", "WireGroup", "StatusReply"] {
        assert!(made.contains(&format!("\n### {body}\n")), "{body} has no table");
    }
}

#[test]
fn the_example_of_the_protocol_can_be_read() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    let page = std::fs::read_to_string(page).expect("the page is here");
    let example = page.split("### Example").nth(1).expect("an example");
    let frames: Vec<Vec<u8>> = example
        .split("```")
        .skip(1)
        .step_by(2)
        .take(2)
        .map(|frame| {
            frame.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect()
        })
        .collect();
    let read = |at: usize| -> FrameRef<'_> {
        decode_frame(&frames[at], FRAME_BYTES_MAX).expect("a frame").expect("all of it")
    };
    let request = read(0);
    let reply = read(1);
    assert_eq!((request.header.kind, request.header.flags), (Kind::Release.number(), 0));
    assert_eq!((reply.header.kind, reply.header.flags), (Kind::Release.number(), FLAG_REPLY));
    assert_eq!((request.header.sequence, request.header.lowest_unacknowledged), (5, 5));
    let body: (ReleaseRequest, usize) = decode_body(request.payload).expect("a body");
    assert_eq!(
        (body.0.allocation.incarnation, body.0.allocation.partition, body.1),
        (1, 83, request.payload.len())
    );
    assert_eq!(decode_body(reply.payload), Ok((ReleaseReply::default(), reply.payload.len())));
}
