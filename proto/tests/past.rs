//! A runner outlives agents, and either may be the older one: what a revision of their contract has said is said for ever.

use std::collections::BTreeMap;

use prost_types::FileDescriptorProto;

/// Revisions that came before today's. A new one adds a copy of what was current to `past/`.
const PAST: u32 = 3;

fn read(file: &str, folder: &str) -> FileDescriptorProto {
    let set = protox::compile([file], [folder]).unwrap();
    set.file.into_iter().find(|described| described.name() == file).unwrap()
}

/// All that goes over the wire, by where it stands: fields by message and number, methods by service and name.
fn wire(file: &FileDescriptorProto) -> BTreeMap<String, String> {
    let mut wire = BTreeMap::new();
    for service in &file.service {
        for method in &service.method {
            let streams = (method.client_streaming(), method.server_streaming());
            let says = format!("{} → {}, streams {streams:?}", method.input_type(), method.output_type());
            wire.insert(format!("{}/{}", service.name(), method.name()), says);
        }
    }
    let entries = |message: &prost_types::DescriptorProto| message.nested_type.clone();
    for message in file.message_type.iter().flat_map(|message| [vec![message.clone()], entries(message)].concat()) {
        for field in &message.field {
            let optional = field.proto3_optional();
            let says = format!(
                "{} of type {:?} {}, {:?}, optional {optional}",
                field.name(),
                field.r#type(),
                field.type_name(),
                field.label()
            );
            wire.insert(format!("{} {}", message.name(), field.number()), says);
        }
    }
    wire
}

#[test]
fn nothing_that_a_past_revision_of_the_runners_contract_says_means_anything_else_today() {
    let today = wire(&read("runner/v1/runner.proto", "proto"));
    for revision in 1..=PAST {
        let file = read(&format!("runner-{revision}.proto"), "past");
        let past = wire(&file);
        assert!(past.len() > 20, "{past:?}");
        for (place, says) in past {
            assert_eq!(today.get(&place), Some(&says), "{place} of revision {revision}");
        }
        assert_eq!(file.package(), "heddle.runner.v1");
    }
}

#[test]
fn every_revision_is_kept() {
    let kept = std::fs::read_dir("past").unwrap().count();
    assert_eq!(kept, PAST as usize);
}
