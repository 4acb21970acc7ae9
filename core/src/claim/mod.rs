//! One claim: what Prepare and Unprepare decide, the checkpoint's format, the CDI spec.
