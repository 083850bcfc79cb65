"""What a round costs: fedmime beside its peers on identical work, its limits, and how it scales."""
