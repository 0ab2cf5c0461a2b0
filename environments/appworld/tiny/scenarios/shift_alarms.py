"""Move the alarms that are on: a change computed from each row."""

import datetime
import random
from typing import Any

from ..people import Person
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "train", 1
INSTRUCTION = "Set every alarm on my phone that is switched on {minutes} minutes {direction}. Leave the others alone."


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    minutes, direction = ((20, "earlier"), (35, "later"), (50, "earlier"))[number]
    shift = datetime.timedelta(minutes=minutes if direction == "later" else -minutes)
    user = models.phone.User.find_one(phone_number=person.phone_number)
    alarms = user.alarms
    # Some are on and some are off, whatever the rows say.
    for alarm, enabled in ((alarms[0], True), (alarms[-1], False)):
        alarm.enabled = enabled
        alarm.save()
    times = {
        str(alarm.id): (datetime.datetime.strptime(alarm.time, "%H:%M") + shift).strftime("%H:%M")
        for alarm in models.phone.Alarm.find_all(user_id=user.id, enabled=True)
    }
    return Drawn({"minutes": minutes, "direction": direction}, {"times": times})


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("phone.Alarm")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("those that are on, and no others, have changed"):
        test.case(sorted(str(alarm.id) for alarm in updated), "==", sorted(private_data.times))

    with test("each of them rings at the new time"):
        end = models.end.phone.Alarm
        for number, time in private_data.times.items():
            test.case(end.by_id(int(number)).time, "==", time)

    with test("nothing but the time of alarms has changed"):
        test.case(added + removed, "==", [])
        for alarm in updated:
            test.case(models.changed_field_names("phone.Alarm", alarm.id), "==", {"time"})
        test.case(models.changed_model_names(), "==", {"phone.Alarm"})


SOLUTION = (
    login("phone"),
    """
alarms = [alarm for alarm in pages(apis.phone.show_alarms, access_token=phone) if alarm["enabled"]]
print([(alarm["label"], alarm["time"]) for alarm in alarms])
""",
    """
shift = <minutes> if <direction> == "later" else -<minutes>
for alarm in alarms:
    hours, minutes = alarm["time"].split(":")
    total = 60 * int(hours) + int(minutes) + shift
    apis.phone.update_alarm(alarm_id=alarm["alarm_id"], time=f"{total // 60:02}:{total % 60:02}", access_token=phone)
apis.supervisor.complete_task()
""",
)
