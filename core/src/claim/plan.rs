//! What Prepare and Unprepare do next.
