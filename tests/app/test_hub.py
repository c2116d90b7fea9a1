"""Hints for watchers: everyone's own, never in the way, the newest kept."""

from app.chat import hub
from app.chat.hub import Hub
from app.frames import ConversationDeleted
from app.ids import ConversationId, UserId

ANN, BEN = UserId("user_ann"), UserId("user_ben")


def gone(number: int) -> ConversationDeleted:
    return ConversationDeleted(conversation_id=ConversationId(f"conv_{number}"))


async def test_every_watcher_of_a_user_hears_and_nobody_else():
    told = Hub()
    with told.watch(ANN) as tab, told.watch(ANN) as phone, told.watch(BEN) as other:
        told.publish(ANN, gone(1))
        told.publish(BEN, gone(2))

        assert await anext(aiter(tab)) == await anext(aiter(phone)) == gone(1)
        assert await anext(aiter(other)) == gone(2)


async def test_a_watch_that_ended_hears_no_more():
    told = Hub()
    with told.watch(ANN) as feed, told.watch(ANN):
        pass
    told.publish(ANN, gone(1))
    with told.watch(ANN) as later:
        told.publish(ANN, gone(2))

        assert await anext(aiter(later)) == gone(2)
    assert feed.lost_notices == 0


async def test_18_a_watcher_who_does_not_read_loses_the_oldest():
    told = Hub()
    with told.watch(ANN) as feed:
        for number in range(hub.FEED_NOTICES + 3):
            told.publish(ANN, gone(number))

        assert feed.lost_notices == 3
        assert await anext(aiter(feed)) == gone(3)
