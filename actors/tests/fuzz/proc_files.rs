use heddle_actors::nvml::devices::Devices;
use heddle_core::fault::Class;

const DEVICES: &str = "Character devices:\n  1 mem\n195 nvidia\n505 nvidia-caps\n506 nvidia-caps-imex-channels\n\nBlock devices:\n  8 sd\n259 blkext\n";
const PARAMS: &str =
    "ResmanDebugLevel: 4294967295\nImexChannelCount: 2048\nCreateImexChannel0: 0\nRegistryDwords: \"\"\n";

#[derive(Clone, Debug, bolero::TypeGenerator)]
enum Edit {
    Replace(u16, u8),
    Insert(u16, u8),
    Remove(u16, u8),
    SwapLines(u8, u8),
    Cut(u16),
}

fn changed(good: &str, edits: &[Edit]) -> Vec<u8> {
    let mut bytes = good.as_bytes().to_vec();
    for edit in edits {
        let within = |at: u16| at as usize % (bytes.len() + 1);
        match *edit {
            Edit::Replace(at, byte) if within(at) < bytes.len() => {
                let at = within(at);
                bytes[at] = byte;
            }
            Edit::Replace(..) => {}
            Edit::Insert(at, byte) => bytes.insert(within(at), byte),
            Edit::Remove(at, count) => {
                let from = within(at);
                bytes.drain(from..bytes.len().min(from + count as usize));
            }
            Edit::SwapLines(one, other) => {
                let mut lines: Vec<_> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                let count = lines.len();
                lines.swap(one as usize % count, other as usize % count);
                bytes = lines.join(&b'\n');
            }
            Edit::Cut(at) => bytes.truncate(within(at)),
        }
    }
    bytes
}

/// Lines of the file, if it is text.
fn lines(bytes: &[u8]) -> Vec<String> {
    std::str::from_utf8(bytes).map(|text| text.lines().map(str::to_owned).collect()).unwrap_or_default()
}

/// The number of the wrong device would be another driver's device in the container.
#[test]
fn a_major_is_the_one_that_a_line_gives_to_our_channels_or_none() {
    let folder = tempfile::tempdir().unwrap();
    bolero::check!().with_type::<Vec<Edit>>().with_iterations(5_000).for_each(|edits| {
        let bytes = changed(DEVICES, edits);
        std::fs::write(folder.path().join("devices"), &bytes).unwrap();
        match Devices::new(folder.path()).channel_major() {
            Ok(major) => {
                let says_so = |line: &String| {
                    let words: Vec<&str> = line.split_whitespace().collect();
                    matches!(words[..], [number, "nvidia-caps-imex-channels"] if number.parse() == Ok(major))
                };
                assert!(lines(&bytes).iter().any(says_so), "{major} of {:?}", String::from_utf8_lossy(&bytes));
                let above = lines(&bytes).into_iter().take_while(|line| !says_so(line));
                assert!(above.into_iter().any(|line| line.trim() == "Character devices:"));
            }
            Err(fault) => assert_eq!(fault.class, Class::Retryable, "the driver may be loaded yet: {fault}"),
        }
    });
}

#[test]
fn a_count_is_the_one_that_the_module_says_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("driver/nvidia/params");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    bolero::check!().with_type::<Vec<Edit>>().with_iterations(5_000).for_each(|edits| {
        let bytes = changed(PARAMS, edits);
        std::fs::write(&file, &bytes).unwrap();
        match Devices::new(folder.path()).channel_count() {
            Ok(count) => {
                let says_so = |line: &String| {
                    line.split_once(':').is_some_and(|(key, value)| {
                        key.trim() == "ImexChannelCount" && value.trim().trim_matches('"').parse() == Ok(count)
                    })
                };
                assert!(lines(&bytes).iter().any(says_so), "{count} of {:?}", String::from_utf8_lossy(&bytes));
            }
            Err(fault) => assert_eq!(fault.class, Class::Retryable, "{fault}"),
        }
    });
}
