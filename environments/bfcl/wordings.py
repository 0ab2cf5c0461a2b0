"""ONE table of wordings: tool → the user's request for its call; and the user's turns made of them.

A wording is English with slots for arguments: {name}, or {name:yes|no} for a truth value. A part [lines=10: ...] is
used only where the argument `lines` is given and is not 10; if the part has no slot for it, it has to be true. Values
are written out, text in quotes, so that different calls have different wordings.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Call, Triplet

WORDINGS: Mapping[str, str] = {
    # GorillaFileSystem
    "cat": "show me what {file_name} contains",
    "cd": "go to the folder {folder}",
    "cp": "copy {source} to {destination}",
    "diff": "compare {file_name1} with {file_name2} line by line",
    "du": "tell me how much space the current folder takes[human_readable=false: in readable units]",
    "echo": "echo the text {content}[file_name=null: into the file {file_name}]",
    "find": 'find everything[path=".": under {path}][name=null: whose name contains {name}]',
    "grep": "find the lines of {file_name} that contain {pattern}",
    "ls": "list what is in the current folder[a=false:, hidden entries too]",
    "mkdir": "make a folder named {dir_name}",
    "mv": "move {source} to {destination}",
    "pwd": "tell me which folder we are in",
    "rm": "delete {file_name}",
    "rmdir": "remove the empty folder {dir_name}",
    "sort": "show the lines of {file_name} in sorted order",
    "tail": "show the end of {file_name}[lines=10:, its last {lines} lines]",
    "touch": "create an empty file {file_name}",
    "wc": 'measure the length of {file_name}[mode="l": in counting mode {mode}]',
    # MathAPI
    "absolute_value": "work out the absolute value of {number}",
    "add": "add {a} and {b}",
    "divide": "divide {a} by {b}",
    "imperial_si_conversion": "convert {value} from {unit_in} to {unit_out} between the imperial and metric systems",
    "logarithm": "work out the logarithm of {value} to base {base} with precision {precision}",
    "max_value": "pick the largest of {numbers}",
    "mean": "work out the mean of {numbers}",
    "min_value": "pick the smallest of {numbers}",
    "multiply": "multiply {a} by {b}",
    "percentage": "tell me what percentage {part} is of {whole}",
    "power": "raise {base} to the power {exponent}",
    "round_number": "round {number}[decimal_places=0: to {decimal_places} decimal places]",
    "si_unit_conversion": "convert {value} from {unit_in} to {unit_out} within the metric system",
    "square_root": "take the square root of {number} with precision {precision}",
    "standard_deviation": "work out the standard deviation of {numbers}",
    "subtract": "take {a} and subtract {b}",
    "sum_values": "sum up {numbers}",
    # MessageAPI
    "add_contact": "add {user_name} to the workspace contacts",
    "delete_message": "delete the latest message sent to user {receiver_id}",
    "get_message_stats": "give me my message statistics",
    "get_user_id": "look up the user ID of {user}",
    "list_users": "list the users of the workspace",
    "message_get_login_status": "check whether I am logged in to messaging",
    "message_login": "log me in to messaging as user {user_id}",
    "search_messages": "search the messages for {keyword}",
    "send_message": "send user {receiver_id} the message {message}",
    "view_messages_sent": "show the messages I have sent",
    # TwitterAPI
    "authenticate_twitter": "sign me in to Twitter as {username} with the password {password}",
    "comment": "comment {comment_content} on tweet {tweet_id}",
    "follow_user": "follow {username_to_follow} on Twitter",
    "get_tweet": "show me tweet {tweet_id}",
    "get_tweet_comments": "show the comments on tweet {tweet_id}",
    "get_user_stats": "get the Twitter statistics of {username}",
    "get_user_tweets": "show all tweets by {username}",
    "list_all_following": "list everyone I follow on Twitter",
    "mention": "mention {mentioned_usernames} in tweet {tweet_id}",
    "post_tweet": "tweet {content}[tags=[]: with the tags {tags}][mentions=[]: mentioning {mentions}]",
    "posting_get_login_status": "check whether I am signed in to Twitter",
    "retweet": "retweet tweet {tweet_id}",
    "search_tweets": "search the tweets for {keyword}",
    "unfollow_user": "stop following {username_to_unfollow} on Twitter",
    # TicketAPI
    "close_ticket": "close support ticket {ticket_id}",
    "create_ticket": 'open a support ticket titled {title}[description="": that says {description}]'
    "[priority=1: with priority {priority}]",
    "edit_ticket": "change support ticket {ticket_id} as follows: {updates}",
    "get_ticket": "show support ticket {ticket_id}",
    "get_user_tickets": "list my support tickets[status=null: with the status {status}]",
    "logout": "log me out of the ticket system",
    "resolve_ticket": "resolve support ticket {ticket_id} with the note {resolution}",
    "ticket_get_login_status": "check whether I am logged in to the ticket system",
    "ticket_login": "log me in to the ticket system as {username} with the password {password}",
    # TradingBot
    "add_to_watchlist": "put the stock {stock} on my watchlist",
    "cancel_order": "cancel stock order {order_id}",
    "filter_stocks_by_price": "keep those of the stocks {stocks} that cost between {min_price} and {max_price}",
    "fund_account": "pay {amount} into my trading account",
    "get_account_info": "show my trading account",
    "get_available_stocks": "list the stocks of the sector {sector}",
    "get_current_time": "tell me the current time",
    "get_order_details": "show the details of stock order {order_id}",
    "get_order_history": "list the IDs of all my stock orders",
    "get_stock_info": "get the figures of the stock {symbol}",
    "get_symbol_by_name": "look up the stock symbol of the company {name}",
    "get_transaction_history": "show my transactions[start_date=null: from {start_date}]"
    "[end_date=null: until {end_date}]",
    "get_watchlist": "show my watchlist",
    "notify_price_change": "tell me whether any of the stocks {stocks} moved by {threshold} percent or more",
    "place_order": "place a {order_type} order for {amount} shares of {symbol} at a price of {price}",
    "remove_stock_from_watchlist": "take the stock {symbol} off my watchlist",
    "trading_get_login_status": "check whether I am logged in to trading",
    "trading_login": "log me in to trading as {username} with the password {password}",
    "trading_logout": "log me out of trading",
    "withdraw_funds": "withdraw {amount} from my trading account",
    # TravelAPI
    "authenticate_travel": "authenticate with the travel system as {user_first_name} {user_last_name}, client "
    "{client_id}, secret {client_secret}, refresh token {refresh_token}, grant type {grant_type}",
    "book_flight": "book a {travel_class} class flight from {travel_from} to {travel_to} on {travel_date}, paid by "
    "card {card_id} under the access token {access_token}",
    "cancel_booking": "cancel the booking {booking_id} under the access token {access_token}",
    "compute_exchange_rate": "convert {value} from {base_currency} to {target_currency}",
    "contact_customer_support": "tell travel support about the booking {booking_id}: {message}",
    "get_all_credit_cards": "show all my registered credit cards",
    "get_booking_history": "show my booking history under the access token {access_token}",
    "get_budget_fiscal_year": "get the budget fiscal year"
    "[lastModifiedAfter=null: as modified after {lastModifiedAfter}]"
    "[includeRemoved=null: with removed years included: {includeRemoved}]",
    "get_credit_card_balance": "get the balance of card {card_id} under the access token {access_token}",
    "get_flight_cost": "get the price of a {travel_class} class flight from {travel_from} to {travel_to} on "
    "{travel_date}",
    "get_nearest_airport_by_city": "find the airport nearest to {location}",
    "list_all_airports": "list all airports",
    "purchase_insurance": "buy {insurance_type} insurance at {insurance_cost} for the booking {booking_id}, paid by "
    "card {card_id} under the access token {access_token}",
    "register_credit_card": "register the credit card {card_number} of {cardholder_name}, valid until "
    "{expiration_date}, verification number {card_verification_number}, under the access token {access_token}",
    "retrieve_invoice": "get the invoice[booking_id=null: of the booking {booking_id}]"
    "[insurance_id=null: with the insurance {insurance_id}] under the access token {access_token}",
    "set_budget_limit": "set my travel budget to {budget_limit} under the access token {access_token}",
    "travel_get_login_status": "check whether I am logged in to the travel system",
    "verify_traveler_information": "verify the traveler {first_name} {last_name}, born {date_of_birth}, passport "
    "{passport_number}",
    # VehicleControlAPI
    "activateParkingBrake": "set the parking brake to {mode}",
    "adjustClimateControl": 'set the climate control to {temperature} degrees[unit="celsius": {unit}]'
    '[fanSpeed=50: with fan speed {fanSpeed}][mode="auto": in mode {mode}]',
    "check_tire_pressure": "check the tire pressure",
    "displayCarStatus": "show the car status of {option}",
    "display_log": "display the log messages {messages}",
    "estimate_distance": "estimate the distance between the zip codes {cityA} and {cityB}",
    "estimate_drive_feasibility_by_mileage": "tell me whether the fuel lasts for {distance} miles",
    "fillFuelTank": "fill {fuelAmount} gallons into the tank",
    "find_nearest_tire_shop": "find the nearest tire shop",
    "gallon_to_liter": "convert {gallon} gallons to liters",
    "get_current_speed": "tell me the current speed",
    "get_outside_temperature_from_google": "get the outside temperature from Google",
    "get_outside_temperature_from_weather_com": "get the outside temperature from weather.com",
    "get_zipcode_based_on_city": "look up the zip code of {city}",
    "liter_to_gallon": "convert {liter} liters to gallons",
    "lockDoors": "{unlock:unlock|lock} the car doors {door}",
    "pressBrakePedal": "press the brake pedal to position {pedalPosition}",
    "releaseBrakePedal": "release the brake pedal",
    "setCruiseControl": "{activate:activate|deactivate} the cruise control at speed {speed} with a distance of "
    "{distanceToNextVehicle} to the next vehicle",
    "setHeadlights": "set the headlights to {mode}",
    "set_navigation": "navigate to {destination}",
    "startEngine": "start the engine with ignition mode {ignitionMode}",
}

_JOINER = ", then "
_SLOT = re.compile(r"{(\w+)(?::([^|}]*)\|([^}]*))?}")
_OPTION = re.compile(r"\[(\w+)=([^:]*):((?:[^\]{]|{[^}]*})*)\]")


def phrase(steps: Sequence[Triplet]) -> list[str] | None:
    """The user's turns that the steps fulfil; an action without calls ends a turn.

    None where a step failed, a turn is empty or the last one is not ended, or a call has no wording for an argument.
    """
    turns: list[str] = []
    said: list[str] = []
    for step in steps:
        if not step.observation.ok:
            return None
        for call in step.action.calls:
            worded = word(call)
            if worded is None:
                return None
            said.append(worded)
        if not step.action.calls:
            if not said:
                return None
            text = _JOINER.join(said)
            turns.append(f"{text[0].upper()}{text[1:]}.")
            said = []
    return turns if turns and not said else None


def word(call: Call) -> str | None:
    """The user's request for this call; None where an argument has no slot or a slot no argument."""
    given, placed = call.arguments, set[str]()

    def option(found: re.Match[str]) -> str:
        """The words of an option that is given, and is not what it is by default."""
        name, default, words = found.groups()
        placed.add(name)
        if name not in given or given[name] == json.loads(default):
            return ""
        if given[name] is not True and not _SLOT.search(words):
            raise ValueError(f"{name} can only be said to be true")
        return words

    def slot(found: re.Match[str]) -> str:
        name, yes, no = found.groups()
        placed.add(name)
        if (yes or no) and not isinstance(given[name], bool):
            raise ValueError(f"{name} is neither true nor false")
        return _value(given[name], yes, no)

    try:
        text = _SLOT.sub(slot, _OPTION.sub(option, WORDINGS[call.name]))
    except (KeyError, ValueError):
        return None
    return text if set(given) <= placed else None


def _value(value: Any, yes: str | None, no: str | None) -> str:
    if yes or no:
        return str(yes if value else no)
    if isinstance(value, str):
        # Quotes inside the text, line breaks and the like are written as in JSON.
        return json.dumps(value, ensure_ascii=False) if re.search(r"['\\\x00-\x1f]", value) else f"'{value}'"
    if isinstance(value, list):
        return ", ".join(_value(item, None, None) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} to {_value(item, None, None)}" for key, item in value.items()) or "nothing"
    return json.dumps(value)
