"""Who is who in a consortium: sites and relays with keys and certificates of their own.

A member makes a key and a request (`create_site`), a coordinator approves requests and signs a
*bundle* of all members (`approve`, `revoke`), and each member joins the bundle (`join`). What
follows needs no coordinator: members recognise each other by their certificates
(`Bundle.refusal`) and their messages by their signatures (`sign`, `verify`).
"""
