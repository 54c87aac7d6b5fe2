"""To import this is to ask whether `tacit` is ours, and whole; an ImportError says what is not."""

from tacit_dp import check_alone

check_alone()
