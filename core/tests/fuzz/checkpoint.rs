use heddle_core::api::ComputeDomainRef;
use heddle_core::claim::ClaimKey;
use heddle_core::claim::checkpoint::{ChannelRecord, Checkpoint, DecodeError, PreparedDevice, State};

use super::bytes::{Edit, changed};

const SAMPLES: [&[u8]; 3] = [
    include_bytes!("../samples/checkpoint/v1/channel.json"),
    include_bytes!("../samples/checkpoint/v1/all.json"),
    include_bytes!("../samples/checkpoint/v1/gpu.json"),
];

#[test]
fn a_changed_checkpoint_is_never_taken_for_another() {
    bolero::check!().with_type::<(u8, Vec<Edit>)>().with_iterations(20_000).for_each(|(sample, edits)| {
        let good = SAMPLES[*sample as usize % SAMPLES.len()];
        let bytes = changed(good, edits);
        match Checkpoint::decode(&bytes) {
            Ok(read) => {
                assert_eq!(read.encode(), bytes);
                assert_eq!(bytes, good, "no change of a few bytes keeps the checksum right");
            }
            Err(DecodeError::Newer(version)) => assert!(version > 1),
            Err(DecodeError::Corrupt(_)) => assert_ne!(bytes, good),
        }
    });
}

#[test]
fn rubbish_is_no_checkpoint() {
    bolero::check!().with_iterations(10_000).for_each(|bytes: &[u8]| {
        assert!(Checkpoint::decode(bytes).is_err());
    });
}

type Parts = (Vec<String>, (u32, u32, Option<u32>), u8, Option<String>);

#[test]
fn whatever_is_written_is_read_again() {
    bolero::check!().with_type::<Parts>().with_iterations(1_000).for_each(|(texts, numbers, state, token)| {
        let texts = &texts[..texts.len().min(9)];
        let text = |at: usize| texts.get(at).cloned().unwrap_or_default();
        let written = Checkpoint {
            claim: ClaimKey { namespace: text(0), name: text(1), uid: text(2) },
            driver: text(3),
            state: [State::Preparing, State::Prepared, State::Tombstone][*state as usize % 3],
            boot_id: text(4),
            compute_domain: (state & 4 == 0).then(|| ComputeDomainRef {
                namespace: text(5),
                name: text(6),
                uid: text(7),
            }),
            channel: (state & 8 == 0).then(|| ChannelRecord {
                channel: numbers.0,
                domain: text(8),
                major: numbers.1,
                all_of: numbers.2,
            }),
            cdi_token: token.clone(),
            devices: texts
                .iter()
                .map(|name| PreparedDevice {
                    request_names: vec![name.clone()],
                    pool: text(0),
                    device: name.clone(),
                    share_id: token.clone(),
                    cdi_ids: texts.to_vec(),
                })
                .collect(),
        };
        assert_eq!(Checkpoint::decode(&written.encode()), Ok(written));
    });
}
