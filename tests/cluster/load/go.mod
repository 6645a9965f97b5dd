module ramjet/tests/cluster/load

go 1.21
