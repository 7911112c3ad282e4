"""Names of the Flower record that carries Undersong's messages, and of its fields. Nothing of Flower is imported.

A Flower message carries one ConfigRecord. On its way to a party it holds serialised ``Request`` messages, on its way
back as many ``Reply`` messages (messages/federation.proto), answered in order. A party that takes part in
nothing for now answers with no reply at all.
"""

RECORD = "undersong"
REQUESTS = "requests"  # list of bytes
REPLIES = "replies"  # list of bytes, as many as the requests, or none
MESSAGE_TYPE = "query"
